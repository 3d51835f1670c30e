"""IMPALA's actor-critic: V-trace targets and advantages, a truncated ratio on the policy gradient.

    -sg[min(rho, rho_bar)] A log pi_theta + coefficient x value loss

    A_t = r_t + gamma v_(t+1) - V_t with v of V-trace, see `VTrace`

Source: 1802.01561 section 4.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.critics import VTrace
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Truncated
from rollart_flow.algorithms.parts.critic import Critic
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to


def impala(
    *, gamma: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0, **common: Unpack[WithRatio]
) -> Algorithm:
    """IMPALA for `train`.

    Args:
        gamma: discount of one token.
        rho_bar: largest ratio, which replaces a larger one in the loss and in a token's own error.
        c_bar: cap of the ratio on what came later; at most `rho_bar`.
        **common: see `WithRatio`.
    """
    loss = Truncated(rho_bar, ratio_to=ratio_to(common))
    advantage = VTrace(gamma, rho_bar, c_bar)
    return compose("impala", loss, common, advantage=advantage, critic=Critic())

"""IMPALA's actor-critic: V-trace targets and advantages, a truncated ratio on the policy gradient.

    -sg[min(rho, rho_bar)] A log pi_theta + coefficient x value loss

    A_t = r_t + gamma v_(t+1) - V_t with v of V-trace, see `algorithms.advantages.vtrace`

Source: 1802.01561 section 4.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.vtrace import VTrace
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.truncated import Truncated
from rollart_flow.algorithms.parts.critic import Critic
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def impala(
    *,
    gamma: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """IMPALA for `train`.

    Args:
        gamma: discount of one token.
        rho_bar: largest ratio; a larger one is replaced by it, in the loss and in a token's own
        error. c_bar: cap of the ratio on what came later; at most `rho_bar`. ratio_to: denominator
        of the ratio, `behavior` or `old`; by default `old` with a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = Truncated(rho_bar, ratio_to=ratio_of(ratio_to, common))
    advantage = VTrace(gamma, rho_bar, c_bar)
    return compose("impala", loss, common, advantage=advantage, critic=Critic())

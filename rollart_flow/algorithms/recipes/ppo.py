"""PPO with a critic: generalized advantages from values of the policy's own value head.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A) + coefficient x value loss

    A_t = sum over l of (gamma lam)^l (r_(t+l) + gamma V_(t+l+1) - V_(t+l))

Sources: 1707.06347; 1506.02438 for the advantages; ROLL Flash (2510.11345) section 2.1.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.critics import GAE
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Clipped
from rollart_flow.algorithms.parts.critic import Critic
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to


def ppo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.2,
    dual: float | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    **common: Unpack[WithRatio],
) -> Algorithm:
    """PPO for `train`; further keywords as in `grpo`.

    Args:
        gamma: discount of one token.
        lam: weight of later errors; 0 uses the critic's next value, 1 the whole return.
    """
    loss = Clipped(clip, clip_high, dual, ratio_to=ratio_to(common))
    return compose("ppo", loss, common, advantage=GAE(gamma, lam), critic=Critic())

"""Group Relative Policy Optimization: rewards normalized in groups, PPO's clipped ratio.

Sources: ROLL Flash (2510.11345) section 2.1, eq. 2 and 3; DAPO (2503.14476) for the higher upper
clip and the mean over all tokens.
"""

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.aggregation import Aggregation
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.ppo import Clipped


def grpo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.28,
    kl: float = 0.0,
    entropy: float = 0.0,
    aggregation: Aggregation = "token",
    eps: float = 1e-6,
) -> Algorithm:
    """GRPO for `train`.

    Args:
        clip: how far below 1 the ratio may go before its gradient is cut.
        clip_high: how far above 1; larger than `clip` lets unlikely tokens grow (DAPO).
        kl: factor of the divergence from version 0 of the policy; 0 needs no reference.
        entropy: factor of the entropy bonus; 0 gives none.
        aggregation: mean over all action tokens (`token`), over trajectories (`sequence`) or over
            domains (`domain`).
        eps: added to the standard deviation of a group's rewards.

    Raises:
        SettingsError: a value out of its range.
    """
    return Algorithm(
        "grpo", Clipped(clip, clip_high), GroupNormalized(eps), aggregation, kl, entropy
    )

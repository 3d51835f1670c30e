"""Dr.GRPO: GRPO without its two biases, the division by the group's deviation and by lengths.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A),  A = r - mean of the group

summed over the tokens of a trajectory, divided by a constant, averaged over trajectories.

Source: 2503.20783, section 3.2.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.groups import GroupCentered
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Clipped
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to


def dr_grpo(*, clip: float = 0.2, clip_high: float = 0.2, **common: Unpack[WithRatio]) -> Algorithm:
    """Dr.GRPO for `train`; keywords as in `grpo`.

    `constant_tokens` must be given, such as the most tokens that a trajectory may have.
    """
    loss = Clipped(clip, clip_high, ratio_to=ratio_to(common))
    return compose("dr_grpo", loss, common, advantage=GroupCentered(), aggregation="constant")

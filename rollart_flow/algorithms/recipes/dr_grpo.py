"""Dr.GRPO: GRPO without its two biases, the division by the group's deviation and by lengths.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A),  A = r - mean of the group

summed over the tokens of a trajectory, divided by a constant, averaged over trajectories.

Source: 2503.20783, section 3.2.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.centered import GroupCentered
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.clipped import Clipped
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def dr_grpo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.2,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """Dr.GRPO for `train`.

    Args:
        clip: distance below 1 at which the gradient of the ratio is cut.
        clip_high: distance above 1.
        ratio_to: denominator of the ratio, `behavior` or `old`; by default `old` with a correction,
            else `behavior`.
        **common: see `Common`; `constant_tokens` must be given, such as the most tokens that a
            trajectory may have.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = Clipped(clip, clip_high, ratio_to=ratio_of(ratio_to, common))
    return compose("dr_grpo", loss, common, advantage=GroupCentered(), aggregation="constant")

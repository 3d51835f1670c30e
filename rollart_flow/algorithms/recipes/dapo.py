"""DAPO: GRPO with a higher upper clip, the mean over all tokens and no reference policy.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A),  A = (r - mean) / (std + eps) of the group

Source: DAPO (2503.14476) section 3. Its dynamic sampling is a filter of the pipeline, which refuses
groups whose rewards are all equal.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.clipped import Clipped
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def dapo(
    *,
    clip: float = 0.2,
    clip_high: float = 0.28,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """DAPO for `train`.

    Args:
        clip: distance below 1 at which the gradient of the ratio is cut.
        clip_high: distance above 1.
        ratio_to: denominator of the ratio, `behavior` or `old`; by default `old` with a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = Clipped(clip, clip_high, ratio_to=ratio_of(ratio_to, common))
    return compose("dapo", loss, common, advantage=GroupNormalized())

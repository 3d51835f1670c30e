"""REINFORCE++ with a baseline: advantages on one scale for the whole batch, PPO's clip.

    -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A)
    A = (r - mean of the group) / (std of that over the batch + eps)

Source: 2501.03262. Its penalty is `kl=..., kl_estimator="k2"`.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.batch_normalized import BatchNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.clipped import Clipped
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def reinforce_plus_plus(
    *,
    clip: float = 0.2,
    clip_high: float = 0.2,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """REINFORCE++ for `train`.

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
    return compose("reinforce_plus_plus", loss, common, advantage=BatchNormalized())

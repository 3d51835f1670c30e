"""GSPO: one ratio for a whole trajectory, clipped, and the mean over trajectories.

    -min(s A, clip(s, 1 - clip, 1 + clip_high) A),  s = exp(mean of log rho over the trajectory)

Source: 2507.18071.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.gspo import GSPO
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def gspo(
    *,
    clip: float = 3e-4,
    clip_high: float = 4e-4,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """GSPO for `train`.

    Args:
        clip: how far below 1 a trajectory's ratio may go before its gradient is cut.
        clip_high: how far above 1.
        ratio_to: policy that the ratio is taken to, `behavior` or `old`; `old` beside a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value out of its range, or a contradiction.
    """
    return compose(
        "gspo",
        GSPO(clip, clip_high, ratio_to=ratio_of(ratio_to, common)),
        common,
        advantage=GroupNormalized(),
        aggregation="sequence",
    )

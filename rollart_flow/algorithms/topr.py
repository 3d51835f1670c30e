"""TOPR: what succeeded is imitated, what failed is pushed down only as far as it is still likely.

    R > 0:   -positive A log pi_theta
    R <= 0:  -negative sg[clip(rho, 0, 1)] A log pi_theta

R is the trajectory's final reward. Other weights than 1 make it weighted TOPR.

Source: 2503.14286; ROLL for the weights.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.topr import TOPR
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def topr(
    *,
    positive: float = 1.0,
    negative: float = 1.0,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """TOPR for `train`.

    Args:
        positive: weight of trajectories whose final reward is above 0.
        negative: weight of all others.
        ratio_to: policy that the ratio is taken to, `behavior` or `old`; `old` beside a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value out of its range, or a contradiction.
    """
    return compose(
        "topr",
        TOPR(positive, negative, ratio_to=ratio_of(ratio_to, common)),
        common,
        advantage=GroupNormalized(),
    )

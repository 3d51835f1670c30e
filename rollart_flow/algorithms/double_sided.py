"""Double-sided masking (GLM-5, slime): a token whose ratio leaves a window teaches nothing.

    -sg[f] A log pi_theta,  f = rho where 1 - clip < rho < 1 + clip_high, else 0

Source: GLM-5 and slime; the window is not published, DAPO's stands in.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.double_sided import DoubleSided
from rollart_flow.algorithms.recipe import Common, compose


def double_sided(
    *,
    clip: float = 0.2,
    clip_high: float = 0.28,
    max_lag: int | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """Double-sided masking for `train`.

    Args:
        clip: how far below 1 the ratio may be.
        clip_high: how far above 1.
        max_lag: most versions that a trajectory's oldest token may be behind; None: any.
        **common: see `Common`.

    Raises:
        SettingsError: a value out of its range, or a contradiction.
    """
    return compose(
        "double_sided", DoubleSided(clip, clip_high, max_lag), common, advantage=GroupNormalized()
    )

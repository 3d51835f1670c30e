"""REINFORCE with a truncated importance ratio, ROLL's loss "TIS".

    -sg[clip(rho, 0, cap)] A log pi_theta

Not to be confused with `tis`, the correction for the mismatch of engine and trainer.

Source: ROLL (2506.06122) and its code.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.truncated import Truncated
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def tis_loss(
    *, cap: float = 1.0, ratio_to: RatioTo | None = None, **common: Unpack[Common]
) -> Algorithm:
    """REINFORCE with a truncated ratio for `train`.

    Args:
        cap: largest ratio; a larger one is replaced by it.
        ratio_to: denominator of the ratio, `behavior` or `old`; by default `old` with a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = Truncated(cap, ratio_to=ratio_of(ratio_to, common))
    return compose("tis_loss", loss, common, advantage=GroupNormalized())

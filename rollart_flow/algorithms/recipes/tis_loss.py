"""REINFORCE with a truncated importance ratio, ROLL's loss "TIS".

    -sg[clip(rho, 0, cap)] A log pi_theta

Not to be confused with `tis`, the correction for the mismatch of engine and trainer.

Source: ROLL (2506.06122) and its code.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.losses.surrogates import Truncated
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to


def tis_loss(*, cap: float = 1.0, **common: Unpack[WithRatio]) -> Algorithm:
    """REINFORCE with a truncated ratio for `train`.

    Args:
        cap: largest ratio; a larger one is replaced by it.
        **common: see `WithRatio`.
    """
    loss = Truncated(cap, ratio_to=ratio_to(common))
    return compose("tis_loss", loss, common, advantage=GroupNormalized())

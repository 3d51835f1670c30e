"""CISPO: the importance ratio is clipped and held, so that no token loses its gradient.

    -sg[clip(rho, 1 - clip, 1 + clip_high)] A log pi_theta

Source: MiniMax-M1 (2506.13585) section 3.1; ROLL's defaults.
"""

from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo
from rollart_flow.algorithms.losses.cispo import CISPO
from rollart_flow.algorithms.recipe import Common, compose, ratio_of


def cispo(
    *,
    clip: float = 0.1,
    clip_high: float = 0.1,
    mask: bool = False,
    ratio_to: RatioTo | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """CISPO for `train`.

    Args:
        clip: how far below 1 the ratio counts.
        clip_high: how far above 1.
        mask: drop the tokens that PPO would clip.
        ratio_to: policy that the ratio is taken to, `behavior` or `old`; `old` beside a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value out of its range, or a contradiction.
    """
    return compose(
        "cispo",
        CISPO(clip, clip_high, mask, ratio_to=ratio_of(ratio_to, common)),
        common,
        advantage=GroupNormalized(),
    )

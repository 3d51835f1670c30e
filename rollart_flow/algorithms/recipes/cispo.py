"""CISPO: the importance ratio is clipped but its gradient is not, so that every token has one.

    loss = -sg[clip(rho, 1 - clip, 1 + clip_high)] A log pi_theta

With `mask`, tokens that PPO would clip are dropped: A > 0 and rho > 1 + clip_high, or A < 0 and
rho < 1 - clip.

Source: MiniMax-M1 (2506.13585) section 3.1; ROLL's defaults of 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.losses.ratio import RatioLoss
from rollart_flow.algorithms.recipe import Common, compose, ratio_of
from rollart_flow.validation import check_flag, check_number


@dataclass(frozen=True, slots=True)
class CISPO(RatioLoss):
    """Weighted log-likelihood of each action token, with a clipped weight."""

    clip: float = 0.1
    """Distance below 1 at which the ratio is clipped."""
    clip_high: float = 0.1
    """Distance above 1."""
    mask: bool = False
    """Whether tokens that PPO would clip are dropped."""

    def __post_init__(self) -> None:
        RatioLoss.__post_init__(self)
        check_number("clip", self.clip, low=0, high=1)
        check_number("clip_high", self.clip_high, low=0)
        check_flag("mask", self.mask)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens)).detach()
        above, below = ratio > 1.0 + self.clip_high, ratio < 1.0 - self.clip
        clipped = above | below
        weight = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        if self.mask:
            clipped = (above & (tokens.advantages > 0)) | (below & (tokens.advantages < 0))
            weight = weight.masked_fill(clipped, 0.0)
        return TokenLoss(-weight * tokens.advantages * tokens.logprobs, ratio, clipped)


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
        clip: distance below 1 at which the ratio is clipped.
        clip_high: distance above 1.
        mask: whether tokens that PPO would clip are dropped.
        ratio_to: denominator of the ratio, `behavior` or `old`; by default `old` with a correction,
            else `behavior`.
        **common: see `Common`.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = CISPO(clip, clip_high, mask, ratio_to=ratio_of(ratio_to, common))
    return compose("cispo", loss, common, advantage=GroupNormalized())

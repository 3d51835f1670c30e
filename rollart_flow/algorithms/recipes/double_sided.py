"""Double-sided masking: tokens whose ratio is outside of a window have no gradient.

    r    = pi_theta / mu
    loss = -sg[f] A log pi_theta,   f = r where 1 - clip < r < 1 + clip_high, else 0

A whole trajectory is dropped if its oldest token is more than `max_lag` versions behind.

Sources: GLM-5 and slime ("direct double-sided importance clipping"), which track no pi_old; they
do not publish the window, so that DAPO's is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from rollart_flow.algorithms.advantages.group import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.losses.segments import segment_maxima
from rollart_flow.algorithms.recipe import Common, compose
from rollart_flow.validation import check_count, check_number


@dataclass(frozen=True, slots=True)
class DoubleSided(Loss):
    """Weighted log-likelihood of each action token, masked outside of the window."""

    clip: float = 0.2
    """Distance below 1 at which the window of the ratio ends."""
    clip_high: float = 0.28
    """Distance above 1."""
    max_lag: int | None = None
    """Largest number of versions from a trajectory's oldest token to the weights that the step
    starts from; None for no limit."""

    def __post_init__(self) -> None:
        check_number("clip", self.clip, low=0, high=1, open_low=True)
        check_number("clip_high", self.clip_high, low=0, open_low=True)
        if self.max_lag is not None:
            check_count("max_lag", self.max_lag, low=0)

    @property
    def anchor(self) -> RatioTo:
        return "behavior"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset() if self.max_lag is None else frozenset({"rows", "lags"})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(tokens.logprobs.detach() - tokens.behavior_logprobs)
        dropped = (ratio <= 1.0 - self.clip) | (ratio >= 1.0 + self.clip_high)
        if self.max_lag is not None:
            oldest = segment_maxima(tokens.need("lags"), tokens.need("rows"))
            dropped = dropped | (oldest > self.max_lag)
        weight = ratio.masked_fill(dropped, 0.0)
        return TokenLoss(-weight * tokens.advantages * tokens.logprobs, ratio, dropped)


def double_sided(
    *,
    clip: float = 0.2,
    clip_high: float = 0.28,
    max_lag: int | None = None,
    **common: Unpack[Common],
) -> Algorithm:
    """Double-sided masking for `train`.

    Args:
        clip: distance below 1 at which the window of the ratio ends.
        clip_high: distance above 1.
        max_lag: largest lag of a trajectory's oldest token [versions]; None for no limit.
        **common: see `Common`.

    Raises:
        SettingsError: a value is out of its range, or settings contradict each other.
    """
    loss = DoubleSided(clip, clip_high, max_lag)
    return compose("double_sided", loss, common, advantage=GroupNormalized())

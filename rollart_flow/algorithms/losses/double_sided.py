"""Double-sided masking: tokens whose ratio leaves a window on either side teach nothing.

    r    = pi_theta / mu
    loss = -sg[f] A log pi_theta,   f = r where 1 - clip < r < 1 + clip_high, else 0

A whole trajectory is dropped where its oldest token is more than `max_lag` versions behind.

Sources: GLM-5 and slime ("direct double-sided importance clipping"), which track no pi_old; they
do not publish the window, so that DAPO's is the default.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_flow.algorithms.base import Column, Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.losses.segments import segment_maxima
from rollart_flow.validation import check_count, check_number


@dataclass(frozen=True, slots=True)
class DoubleSided(Loss):
    """See the module."""

    clip: float = 0.2
    """How far below 1 the ratio may be."""
    clip_high: float = 0.28
    """How far above 1."""
    max_lag: int | None = None
    """Most versions that a trajectory's oldest token may be behind the weights that the step starts
    from; None: any."""

    def __post_init__(self) -> None:
        check_number("clip", self.clip, low=0, high=1, open_low=True)
        check_number("clip_high", self.clip_high, low=0, open_low=True)
        if self.max_lag is not None:
            check_count("max_lag", self.max_lag, low=0)

    @property
    def anchor(self) -> RatioTo:
        """See `Loss`."""
        return "behavior"

    @property
    def needs(self) -> frozenset[Column]:
        """See `Loss`."""
        return frozenset() if self.max_lag is None else frozenset({"rows", "lags"})

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Masked, weighted log-likelihood of each action token. See `Loss`."""
        import torch

        ratio = torch.exp(tokens.logprobs.detach() - tokens.behavior_logprobs)
        dropped = (ratio <= 1.0 - self.clip) | (ratio >= 1.0 + self.clip_high)
        if self.max_lag is not None:
            oldest = segment_maxima(tokens.need("lags"), tokens.need("rows"))
            dropped = dropped | (oldest > self.max_lag)
        weight = ratio.masked_fill(dropped, 0.0)
        return TokenLoss(-weight * tokens.advantages * tokens.logprobs, ratio, dropped)

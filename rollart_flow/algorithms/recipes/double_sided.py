"""Double-sided masking: tokens whose ratio is outside of a window have no gradient.

    r    = pi_theta / mu
    loss = -sg[f] A log pi_theta,   f = r where 1 - clip < r < 1 + clip_high, else 0

A whole trajectory is dropped if its oldest token is more than `max_lag` versions behind.

Sources: GLM-5 and slime ("direct double-sided importance clipping"), which track no pi_old; they
do not publish the window, so that DAPO's is the default.
"""

from dataclasses import dataclass
from typing import Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import ClipBelow, Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.algorithms.losses.surrogates import segment_maxima
from rollart_flow.algorithms.recipe import Common, compose
from rollart_flow.fields import NotNegative, Positive
from rollart_flow.validation import CheckedSettings


@dataclass(frozen=True, slots=True)
class DoubleSided(CheckedSettings, Loss):
    """Weighted log-likelihood of each action token, masked outside of the window."""

    clip: ClipBelow = 0.2
    """Distance below 1 at which the window of the ratio ends."""
    clip_high: Positive = 0.28
    """Distance above 1."""
    max_lag: NotNegative | None = None
    """Largest number of versions from a trajectory's oldest token to the weights that the step
    starts from; None for no limit."""

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
    """Double-sided masking for `train`, with the settings of its loss and of `Common`."""
    loss = DoubleSided(clip, clip_high, max_lag)
    return compose("double_sided", loss, common, advantage=GroupNormalized())

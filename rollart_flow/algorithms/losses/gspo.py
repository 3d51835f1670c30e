"""GSPO: one ratio for a whole trajectory, the geometric mean of its tokens' ratios, clipped.

    s    = exp(mean over the trajectory's action tokens of log rho)
    loss = -min(s A, clip(s, 1 - clip, 1 + clip_high) A)      at each of its tokens

With the mean over trajectories as aggregation this is the paper's loss. Clips are far smaller than
PPO's, since a mean moves less.

Source: 2507.18071, eq. 5 to 7 and section 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rollart_flow.algorithms.base import Column, TokenLoss, Tokens
from rollart_flow.algorithms.losses.ratio import RatioLoss
from rollart_flow.algorithms.losses.segments import segment_means
from rollart_flow.validation import check_number


@dataclass(frozen=True, slots=True)
class GSPO(RatioLoss):
    """See the module."""

    reads: ClassVar[frozenset[Column]] = frozenset({"rows"})

    clip: float = 3e-4
    """How far below 1 a trajectory's ratio may go before its gradient is cut."""
    clip_high: float = 4e-4
    """How far above 1."""

    def __post_init__(self) -> None:
        RatioLoss.__post_init__(self)
        check_number("clip", self.clip, low=0, high=1, open_low=True)
        check_number("clip_high", self.clip_high, low=0, open_low=True)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Clipped surrogate of its trajectory at each action token. See `Loss`."""
        import torch

        ratio = torch.exp(segment_means(self.log_ratio(tokens), tokens.need("rows")))
        within = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        surrogate, bounded = ratio * tokens.advantages, within * tokens.advantages
        return TokenLoss(
            -torch.minimum(surrogate, bounded), ratio.detach(), (bounded < surrogate).detach()
        )

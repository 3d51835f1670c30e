"""GSPO: one ratio for a whole trajectory, the geometric mean of its tokens' ratios, clipped.

    s    = exp(mean over the trajectory's action tokens of log rho)
    loss = -min(s A, clip(s, 1 - clip, 1 + clip_high) A)      at each of its tokens

With the mean over trajectories as aggregation this is the paper's loss. The clips are far smaller
than those of PPO, since a mean varies less.

Source: 2507.18071, eq. 5 to 7 and section 5.1.
"""

from dataclasses import dataclass
from typing import ClassVar, Unpack

from rollart_flow.algorithms.advantages.groups import GroupNormalized
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import ClipBelow, TokenLoss, Tokens
from rollart_flow.algorithms.losses.surrogates import RatioLoss, segment_means
from rollart_flow.algorithms.recipe import WithRatio, compose, ratio_to
from rollart_flow.fields import Positive


@dataclass(frozen=True, slots=True)
class GSPO(RatioLoss):
    """Clipped surrogate of a trajectory, at each of its action tokens."""

    reads: ClassVar[frozenset[str]] = frozenset({"rows"})

    clip: ClipBelow = 3e-4
    """Distance below 1 at which the gradient of a trajectory's ratio is cut."""
    clip_high: Positive = 4e-4
    """Distance above 1."""

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(segment_means(self.log_ratio(tokens), tokens.need("rows")))
        within = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        surrogate, bounded = ratio * tokens.advantages, within * tokens.advantages
        loss, clipped = -torch.minimum(surrogate, bounded), bounded < surrogate
        return TokenLoss(loss, ratio.detach(), clipped.detach())


def gspo(*, clip: float = 3e-4, clip_high: float = 4e-4, **common: Unpack[WithRatio]) -> Algorithm:
    """GSPO for `train`, with the settings of its loss and the keywords of `WithRatio`."""
    loss = GSPO(clip, clip_high, ratio_to=ratio_to(common))
    return compose("gspo", loss, common, advantage=GroupNormalized(), aggregation="sequence")

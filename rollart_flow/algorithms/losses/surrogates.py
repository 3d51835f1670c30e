"""Losses of action tokens that several recipes share, and statistics of segments of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from rollart_flow.algorithms.base import ClipBelow, Loss, RatioTo, TokenLoss, Tokens
from rollart_flow.fields import Positive, Within
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RatioLoss(CheckedSettings, Loss):
    """A loss of rho = pi_theta / mu, or of rho = pi_theta / pi_old.

    With pi_old the algorithm multiplies the loss by sg[pi_old / mu], or by the correction in its
    place. In the first update of a step, rho is then 1.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    """Names in `Tokens` that the loss needs for either denominator."""

    ratio_to: RatioTo = field(default="behavior", kw_only=True)
    """Denominator of the ratio, see `RatioTo`."""

    @property
    def anchor(self) -> RatioTo:
        return self.ratio_to

    @property
    def needs(self) -> frozenset[str]:
        return self.reads if self.ratio_to == "behavior" else self.reads | {"old_logprobs"}

    def log_ratio(self, tokens: Tokens) -> torch.Tensor:
        """Return log rho of each token [action tokens], differentiable."""
        if self.ratio_to == "behavior":
            return tokens.logprobs - tokens.behavior_logprobs
        return tokens.logprobs - tokens.need("old_logprobs")


@dataclass(frozen=True, slots=True)
class Clipped(RatioLoss):
    """PPO's clipped surrogate.

        rho  = pi_theta / mu, or pi_theta / pi_old         `ratio_to`
        L    = -min(rho A, clip(rho, 1 - clip, 1 + clip_high) A)
        loss = min(L, -dual A)  for A < 0 where `dual` is set, else L

    Sources: ROLL Flash (2510.11345) section 2.1, eq. 2 and 3; DAPO (2503.14476) for the higher
    upper clip; 1912.09729 for the dual clip, which bounds how hard a token that has become likely
    is pushed down.
    """

    clip: ClipBelow = 0.2
    """Distance below 1 at which the gradient of the ratio is cut."""
    clip_high: Positive = 0.28
    """Distance above 1; a larger value than `clip` lets unlikely tokens grow (DAPO)."""
    dual: Annotated[float, Within(1, open_low=True)] | None = None
    """Ratio beyond which a token with a negative advantage has no gradient, above 1 (1.4 in ROLL, 3
    elsewhere); None for no bound."""

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens))
        within = ratio.clamp(1.0 - self.clip, 1.0 + self.clip_high)
        surrogate, bounded = ratio * tokens.advantages, within * tokens.advantages
        clipped = bounded < surrogate
        objective = torch.minimum(surrogate, bounded)
        if self.dual is not None:
            least, bad = self.dual * tokens.advantages, tokens.advantages < 0
            clipped = clipped | (bad & (objective < least))
            objective = torch.where(bad, torch.maximum(objective, least), objective)
        return TokenLoss(-objective, ratio.detach(), clipped.detach())


@dataclass(frozen=True, slots=True)
class Truncated(RatioLoss):
    """REINFORCE with a truncated importance ratio (ROLL's "TIS").

        loss = -sg[clip(rho, 0, cap)] A log pi_theta

    Every token has a gradient: the cap replaces a larger ratio. With a cap of 1, a token that has
    become likelier has no larger weight.

    Sources: ROLL (2506.06122) and its code's loss of that name; IMPALA (1802.01561) for the
    truncation.
    """

    cap: Positive = 1.0
    """Largest ratio; a larger one is replaced by it."""

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(self.log_ratio(tokens)).detach()
        loss = -ratio.clamp(max=self.cap) * tokens.advantages * tokens.logprobs
        return TokenLoss(loss, ratio, ratio > self.cap)


@dataclass(frozen=True, slots=True)
class Vanilla(Loss):
    """The plain policy gradient: loss = -A log pi_theta (Williams 1992, REINFORCE).

    There is no ratio, so no correction for staleness. With advantages of 1 the loss is the negative
    log-likelihood of imitation.
    """

    def __call__(self, tokens: Tokens) -> TokenLoss:
        import torch

        ratio = torch.exp(tokens.logprobs.detach() - tokens.behavior_logprobs)
        nothing = torch.zeros_like(ratio, dtype=torch.bool)
        return TokenLoss(-tokens.advantages * tokens.logprobs, ratio, nothing)


def segment_means(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Return the mean over each segment, at each of its tokens [tokens]; differentiable.

    A segment is a trajectory or a chunk. The mean depends on its own tokens alone, so that the
    grouping of trajectories into micro-batches changes nothing.

    Args:
        values: [tokens].
        segments: int64 [tokens], the segment of each token, from 0.
    """
    import torch

    count = int(segments.max()) + 1 if len(segments) else 0
    sums = values.new_zeros(count).index_add(0, segments, values)
    sizes = values.new_zeros(count).index_add(0, segments, torch.ones_like(values).detach())
    return (sums / sizes).index_select(0, segments)


def segment_maxima(values: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """Return the largest value of each segment, at each token; arguments as in `segment_means`."""
    count = int(segments.max()) + 1 if len(segments) else 0
    largest = values.new_full((count,), int(values.min()) if len(values) else 0)
    return largest.scatter_reduce(0, segments, values, "amax").index_select(0, segments)

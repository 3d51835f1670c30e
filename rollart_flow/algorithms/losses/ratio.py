"""The base of losses with an importance ratio, which has a choice of denominators."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, get_args

from rollart_flow.algorithms.base import Loss, RatioTo, Tokens
from rollart_flow.validation import check_choice

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class RatioLoss(Loss):
    """A loss of rho = pi_theta / mu, or of rho = pi_theta / pi_old.

    With pi_old the algorithm multiplies the loss by sg[pi_old / mu], or by the correction in its
    place. In the first update of a step, rho is then 1.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    """Names in `Tokens` that the loss needs for either denominator."""

    ratio_to: RatioTo = field(default="behavior", kw_only=True)
    """Denominator of the ratio, see `RatioTo`."""

    def __post_init__(self) -> None:
        check_choice("ratio_to", self.ratio_to, get_args(RatioTo))

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

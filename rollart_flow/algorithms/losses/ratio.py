"""The base of losses with an importance ratio: the choice of the policy that it is taken to."""

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

    With pi_old the algorithm multiplies the loss by sg[pi_old / mu], or by the correction that
    stands for it; the loss itself is then inert as a correction in the first update of a step,
    where rho is 1.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    """Names that the loss needs of `Tokens`, whatever the ratio is taken to."""

    ratio_to: RatioTo = field(default="behavior", kw_only=True)
    """Policy that the ratio is taken to, see `RatioTo`."""

    def __post_init__(self) -> None:
        check_choice("ratio_to", self.ratio_to, get_args(RatioTo))

    @property
    def anchor(self) -> RatioTo:
        return self.ratio_to

    @property
    def needs(self) -> frozenset[str]:
        return self.reads if self.ratio_to == "behavior" else self.reads | {"old_logprobs"}

    def log_ratio(self, tokens: Tokens) -> torch.Tensor:
        """log rho of each token [action tokens], differentiable."""
        if self.ratio_to == "behavior":
            return tokens.logprobs - tokens.behavior_logprobs
        return tokens.logprobs - tokens.need("old_logprobs")

"""`Algorithm`: what `train` runs: a loss, an estimator of advantages and an aggregation.

The recipes beside this file (`grpo`, ...) fill it with the defaults of a paper; every part can be
replaced by another one. The invariant: every setting is checked here, where a pipeline is built,
and none is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import pyarrow as pa

from rollart_flow.algorithms.aggregation import Aggregation, aggregation_weights
from rollart_flow.algorithms.base import Advantages, Estimator, Floats, Loss, TokenLoss, Tokens
from rollart_flow.algorithms.checks import check_choice, check_number
from rollart_flow.errors import TrainerError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One policy gradient, whole."""

    name: str
    """Recipe that it was made by, for plans and records."""
    loss: Loss
    advantage: Estimator
    aggregation: Aggregation = "token"
    """How losses of tokens become one number, see `aggregation`."""
    kl: float = 0.0
    """Factor of the divergence from version 0 of the policy; 0 needs no reference."""
    entropy: float = 0.0
    """Factor of the entropy bonus; 0 gives none."""

    def __post_init__(self) -> None:
        check_choice("aggregation", self.aggregation, get_args(Aggregation))
        check_number("kl", self.kl, low=0)
        check_number("entropy", self.entropy, low=0)

    @property
    def needs_reference(self) -> bool:
        """Whether `Tokens.reference_logprobs` must be there."""
        return self.kl > 0

    def advantages(self, batch: pa.Table) -> Advantages:
        """Advantages of a batch. See `Estimator`."""
        return self.advantage(batch)

    def weights(self, batch: pa.Table) -> Floats:
        """Factor on each trajectory's loss [trajectories]; mean over action tokens otherwise."""
        return aggregation_weights(batch, self.aggregation)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """Loss of each action token with its divergence from the reference policy.

        The divergence is Schulman's k3: e^d - d - 1, d = log pi_ref - log pi_theta.

        Raises:
            TrainerError: `kl` is set, and there are no reference logprobs.
        """
        found = self.loss(tokens)
        if self.kl > 0:
            return replace(found, loss=found.loss + self.kl * self._divergence(tokens))
        return found

    def _divergence(self, tokens: Tokens) -> torch.Tensor:
        import torch

        if tokens.reference_logprobs is None:
            raise TrainerError(f"{self.name}(kl={self.kl}) needs the reference policy's logprobs")
        gap = tokens.reference_logprobs - tokens.logprobs
        return torch.expm1(gap) - gap

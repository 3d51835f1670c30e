"""Imitation: the plain negative log-likelihood of the actions of a batch. Rewards play no role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rollart_flow.algorithms.base import Advantages, Algorithm, TokenLoss

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Supervised(Algorithm):
    """loss = -log pi_theta, averaged over all action tokens of the batch."""

    @property
    def kl_coefficient(self) -> float:
        """0: there is no reference policy."""
        return 0.0

    def advantages(self, batch: pa.Table) -> Advantages:
        """1 for every trajectory: each is an example to follow."""
        ones = tuple(np.ones(1, dtype=np.float32) for _ in range(batch.num_rows))
        return Advantages(ones, (1.0,) * batch.num_rows, zero_variance_groups=0)

    def token_loss(
        self,
        logprobs: torch.Tensor,
        behavior_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        reference_logprobs: torch.Tensor | None = None,
    ) -> TokenLoss:
        """Negative log-likelihood times the advantage. See `Algorithm.token_loss`."""
        import torch

        ratio = torch.exp(logprobs.detach() - behavior_logprobs)
        nothing = torch.zeros_like(ratio, dtype=torch.bool)
        return TokenLoss(-advantages * logprobs, ratio, nothing)

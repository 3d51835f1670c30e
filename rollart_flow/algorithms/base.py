"""The protocol of algorithms. One variant, one short file beside this one.

An algorithm is frozen settings that a pipeline file can name without loading torch; its two
methods are pure. `advantages` sees Arrow columns of one batch, `token_loss` sees tensors of
action tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Advantages:
    """Per trajectory of a batch, in its order."""

    values: tuple[np.ndarray[tuple[int], np.dtype[np.float32]], ...]
    """Each of shape [1] (one for all action tokens) or [action tokens]."""
    weights: tuple[float, ...]
    """Factor on each trajectory's loss."""
    zero_variance_groups: int
    """Groups whose rewards were all equal."""


@dataclass(frozen=True)
class TokenLoss:
    """Per-token loss and what is reported about it; tensors of shape [action tokens]."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """Importance ratio of the current to the behavior policy, detached."""
    clipped: torch.Tensor
    """bool: whether the clip was active."""


class Algorithm(ABC):
    """Advantages and loss of one family of policy gradients."""

    @abstractmethod
    def advantages(self, batch: pa.Table) -> Advantages:
        """Advantages from group_id, domain, reward, action_mask (and staleness) of a batch."""

    @abstractmethod
    def token_loss(
        self,
        logprobs: torch.Tensor,
        behavior_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        reference_logprobs: torch.Tensor | None = None,
    ) -> TokenLoss:
        """Loss of each action token; all arguments have shape [action tokens].

        `logprobs` is differentiable; `behavior_logprobs` are those stored with the trajectory.
        """

    @property
    @abstractmethod
    def kl_coefficient(self) -> float:
        """0: no reference policy is needed."""

    @property
    def entropy_coefficient(self) -> float:
        """The trainer subtracts this times the policy's entropy from the loss of each token."""
        return 0.0

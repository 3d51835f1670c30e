"""The protocols that an algorithm is composed of. One variant, one short file beside this one.

Two sides. An `Estimator` sees Arrow columns of one batch, before it is trained on; what it gives is
stored with the batch. A `Loss` sees tensors of action tokens, while the batch is trained on. Both
are frozen settings that a pipeline file can name without loading torch, and pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import torch

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Advantages:
    """Per trajectory of a batch, in its order."""

    values: tuple[np.ndarray[tuple[int], np.dtype[np.float32]], ...]
    """Each of shape [1] (one for all action tokens) or [action tokens]."""
    zero_variance_groups: int
    """Groups whose rewards were all equal."""
    targets: tuple[np.ndarray[tuple[int], np.dtype[np.float32]], ...] | None = None
    """What a critic is trained towards, each [action tokens]; only where values are needed."""


class Estimator(ABC):
    """Advantages of one batch from its rewards."""

    needs_values: ClassVar[bool] = False
    """Reads a column `values`, list<float32> [action tokens]: the critic's, in order."""
    needs_old_logprobs: ClassVar[bool] = False
    """Reads a column `old_logprobs`, list<float32> [action tokens]: log pi of the weights that the
    step starts from (`trained_version`)."""

    @abstractmethod
    def __call__(self, batch: pa.Table) -> Advantages:
        """Advantages from group_id, domain, reward, turns, action_mask of a batch.

        Raises:
            TrainerError: a trajectory has no reward.
        """


@dataclass(frozen=True, slots=True)
class Tokens:
    """Action tokens of whole trajectories, in row order; each of shape [action tokens]."""

    logprobs: torch.Tensor
    """log pi_theta, differentiable."""
    behavior_logprobs: torch.Tensor
    """log mu, as stored with the trajectory."""
    advantages: torch.Tensor
    reference_logprobs: torch.Tensor | None = None
    """log pi_ref; None where the algorithm needs no reference policy."""


@dataclass(frozen=True)
class TokenLoss:
    """Per-token loss and what is reported about it; tensors of shape [action tokens]."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """Importance ratio that the loss used, detached."""
    clipped: torch.Tensor
    """bool: whether the clip was active."""


class Loss(ABC):
    """Loss of one family of policy gradients, to be minimised."""

    @abstractmethod
    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Loss of each action token, before aggregation."""

"""The protocols that an algorithm is composed of. One variant, one short file beside this one.

Two sides. An `Estimator` sees Arrow columns of one batch, before it is trained on; what it gives is
stored with the batch. A `Loss` sees tensors of action tokens, while the batch is trained on. Both
are frozen settings that a pipeline file can name without loading torch, and pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa

from rollart_flow.errors import TrainerError

if TYPE_CHECKING:
    import torch

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]

RatioTo = Literal["behavior", "old"]
"""Policy that an importance ratio is taken to. `behavior`: the one that drew the token, so that one
ratio corrects for everything. `old`: the one that the step starts from; the rest of the way, from
it to the behavior policy, is then a factor of its own (a correction)."""

Column = Literal["reference_logprobs", "old_logprobs", "rewards", "rows", "chunks", "lags"]
"""A field of `Tokens` that is there only where somebody needs it."""


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
    old_logprobs: torch.Tensor | None = None
    """log pi_old: recomputed under the weights that the step starts from, the same in all of its
    updates; None where the algorithm does not need it."""
    rewards: torch.Tensor | None = None
    """Final reward of the token's trajectory; None where the batch has none."""
    rows: torch.Tensor | None = None
    """int64: which trajectory of these the token is of, from 0."""
    chunks: torch.Tensor | None = None
    """int64: which interaction chunk of these it is of, from 0. A chunk is a run of action tokens
    between two observations; no two trajectories share one."""
    lags: torch.Tensor | None = None
    """int64: versions by which the policy that drew it is behind the one that the step starts from;
    tokens of one trajectory may differ. None where the batch does not say."""

    def need(self, column: Column) -> torch.Tensor:
        """A field that must be there.

        Raises:
            TrainerError: it is not.
        """
        values: torch.Tensor | None = getattr(self, column)
        if values is None:
            raise TrainerError(f"the algorithm needs {column}, which this batch does not have")
        return values


@dataclass(frozen=True)
class TokenLoss:
    """Per-token loss and what is reported about it; tensors of shape [action tokens]."""

    loss: torch.Tensor
    ratio: torch.Tensor
    """Importance ratio that the loss used, detached."""
    clipped: torch.Tensor
    """bool: whether the clip or mask was active."""


class Loss(ABC):
    """Loss of one family of policy gradients, to be minimised."""

    @property
    def anchor(self) -> RatioTo | None:
        """Policy that its importance ratio is taken to; None where it has none.

        `behavior` means that the loss corrects all the way by itself, so that any further
        correction would correct twice. With `old` the algorithm adds the factor pi_old / mu.
        """
        return None

    @property
    def needs(self) -> frozenset[Column]:
        """Fields of `Tokens` that it reads beyond logprobs and advantages."""
        return frozenset()

    @abstractmethod
    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Loss of each action token, before aggregation.

        Raises:
            TrainerError: a field that it needs is missing.
        """


class Correction(ABC):
    """How far the behavior policy is from pi_old, as a factor on each token's loss.

    It stands for pi_old / mu and goes with a ratio pi_theta / pi_old, so that the two together
    correct once. Engines and trainers compute the same policy with different kernels, and tokens
    may be versions behind; both are in this factor, and neither is in the ratio.
    """

    @property
    def needs(self) -> frozenset[Column]:
        """Fields of `Tokens` that it reads beyond logprobs and advantages."""
        return frozenset({"old_logprobs"})

    @abstractmethod
    def __call__(self, tokens: Tokens) -> torch.Tensor:
        """Factor of each action token [action tokens], without gradient."""

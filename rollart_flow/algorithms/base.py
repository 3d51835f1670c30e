"""The protocols that an algorithm is composed of. One variant, one short file.

An `Estimator` sees Arrow columns of one batch before it is trained on; its result is stored with
the batch. A `Loss` sees tensors of action tokens while the batch is trained on. Both are frozen
settings that a pipeline file can name without loading torch, and pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from rollart_flow.errors import TrainerError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"

Rows: TypeAlias = "tuple[np.ndarray[tuple[int], np.dtype[np.float32]], ...]"
"""An array of numbers for each trajectory of a batch, in its order."""

RatioTo = Literal["behavior", "old"]
"""Policy that an importance ratio is taken to. `behavior`: the one that sampled the token, so that
one ratio corrects for everything. `old`: the one that the step starts from; the rest of the way,
from it to the behavior policy, is then a factor of its own (a correction)."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of the trajectories of a batch, in its order."""

    values: Rows
    """Each of shape [1] (one for all action tokens) or [action tokens]."""
    zero_variance_groups: int
    """Groups whose rewards were all equal."""
    columns: Mapping[str, Rows] = field(default_factory=dict)
    """Further columns of `batches` to store, by name (`TARGETS`), in the type
    that the schema declares."""


class Estimator(ABC):
    """Advantages of one batch from its rewards."""

    needs_values: ClassVar[bool] = False
    """Reads a column `values`, list<float32> [action tokens]: the critic's, in order."""
    needs_old_logprobs: ClassVar[bool] = False
    """Reads a column `old_logprobs`, list<float32> [action tokens]: log pi of the weights that the
    step starts from (`trained_version`)."""

    @abstractmethod
    def __call__(self, batch: pa.Table) -> Advantages:
        """Advantages of a batch, from any column of `trajectories`.

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
    rows: torch.Tensor | None = None
    """int64: index of the token's trajectory among these, from 0."""
    chunks: torch.Tensor | None = None
    """int64: index of the token's interaction chunk among these, from 0. A chunk is a run of action
    tokens between two observations; no two trajectories share one."""
    lags: torch.Tensor | None = None
    """int64: versions by which the policy that sampled the token is behind the one that the step
    starts from; tokens of one trajectory may differ. None where the batch does not say."""
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Columns of the batch that the algorithm needs, by name, one value for each token."""

    def need(self, name: str) -> torch.Tensor:
        """A field of this class, or a column of the batch, that must be there.

        Raises:
            TrainerError: it is not.
        """
        values = getattr(self, name) if name in COMPUTED else self.columns.get(name)
        if values is None:
            raise TrainerError(f"the algorithm needs {name}, which this batch does not have")
        found: torch.Tensor = values
        return found


TARGETS = "targets"
"""Column of `batches` that a critic is trained towards."""

COMPUTED = frozenset({"reference_logprobs", "old_logprobs", "rows", "chunks", "lags"})
"""Fields of `Tokens` that a loss may need and the trainer computes; any other name that a loss
needs is a column of the batch."""


@dataclass(frozen=True)
class TokenLoss:
    """Per-token loss and its statistics; tensors of shape [action tokens]."""

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
    def needs(self) -> frozenset[str]:
        """Names of everything that the loss reads beyond logprobs and advantages.

        Each is one of `COMPUTED`, or the name of a numeric column of `trajectories` or `batches`,
        which `Tokens.need` then gives token by token (`trainers.batch.columns` says how).
        """
        return frozenset()

    @abstractmethod
    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Loss of each action token, before aggregation.

        Raises:
            TrainerError: a field or column that the loss needs is missing.
        """


class Correction(ABC):
    """Distance of the behavior policy from pi_old, as a factor on each token's loss.

    It stands for pi_old / mu and goes with a ratio pi_theta / pi_old, so that the two together
    correct once. Engines and trainers compute the same policy with different kernels, and tokens
    may be versions behind; both are in this factor, and neither is in the ratio.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Names of everything that the correction reads, as `Loss.needs`."""
        return frozenset({"old_logprobs"})

    @abstractmethod
    def __call__(self, tokens: Tokens) -> torch.Tensor:
        """Factor of each action token [action tokens], without gradient."""

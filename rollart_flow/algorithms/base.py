"""The protocols that an algorithm is composed of.

An `Estimator` reads Arrow columns of one batch before training; its result is stored with the
batch. A `Loss` reads tensors of action tokens during training. Both are pure, and frozen settings
that a pipeline file can name without loading torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

from rollart_flow.errors import TrainerError
from rollart_flow.fields import Within

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"

Discount: TypeAlias = Annotated[float, Within(0, 1)]
"""Factor on what comes one place later."""

ClipBelow: TypeAlias = Annotated[float, Within(0, 1, open_low=True)]
"""Distance below 1 at which a ratio is cut."""

Rows: TypeAlias = "tuple[np.ndarray[tuple[int], np.dtype[np.float32]], ...]"
"""An array of numbers for each trajectory of a batch, in order."""

RatioTo = Literal["behavior", "old"]
"""Denominator of an importance ratio. `behavior`: the policy that sampled the token, so that one
ratio corrects for everything. `old`: the policy that the step starts from; a separate factor (a
correction) then accounts for its difference from the behavior policy."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of the trajectories of a batch, in its order."""

    values: Rows
    """Each of shape [1] (one for all action tokens) or [action tokens]."""
    zero_variance_groups: int
    """Groups whose rewards were all equal."""
    columns: Mapping[str, Rows] = field(default_factory=dict)
    """Further columns of `batches` to store, by name (`TARGETS`), in their declared types: a list
    of one number for each action token, or one number for each trajectory, in an array of 1."""


class Estimator(ABC):
    """Advantages of one batch from its rewards."""

    needs_values: ClassVar[bool] = False
    """Whether it reads the column `values` of a critic, list<float32> [action tokens], in order."""
    needs_old_logprobs: ClassVar[bool] = False
    """Whether it reads the column `old_logprobs`, list<float32> [action tokens]: log pi of the
    weights that the step starts from (`trained_version`)."""
    needs_reference: ClassVar[bool] = False
    """Whether it reads the column `reference_logprobs`, list<float32> [action tokens]: log pi_ref
    of the reference policy."""
    needs_mismatched: ClassVar[bool] = False
    """Whether it reads `old_logprobs` and `reference_logprobs` of mismatched trajectories too, see
    `parts.mismatched`."""
    single_update: ClassVar[bool] = False
    """Whether its values are the slope of a loss at the weights that the step starts from, so that
    a step must be one update."""
    reads: ClassVar[frozenset[str]] = frozenset()
    """Names of columns of `batches` that it reads and that the source of the batch fills, such as
    `pair`."""
    compares_groups: ClassVar[bool] = False
    """Whether an advantage depends on the rewards of the other attempts of a group, so that a group
    is trained on together."""

    @abstractmethod
    def __call__(self, batch: pa.Table) -> Advantages:
        """Compute the advantages of a batch from any columns of `trajectories`.

        Raises TrainerError if a trajectory has no reward, an action token lies outside the turns,
        or a column that the estimator reads has not one finite value for each action token.
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
    """log pi_ref; None if the algorithm needs no reference policy."""
    old_logprobs: torch.Tensor | None = None
    """log pi_old, recomputed under the weights that the step starts from, the same in all updates
    of the step; None if the algorithm does not need it."""
    rows: torch.Tensor | None = None
    """int64: index of the token's trajectory among these, from 0."""
    chunks: torch.Tensor | None = None
    """int64: index of the token's interaction chunk among these, from 0. A chunk is a run of action
    tokens between two observations; no two trajectories share one."""
    lags: torch.Tensor | None = None
    """int64: number of versions from the behavior policy of the token to the policy that the step
    starts from; tokens of one trajectory may differ. None if the batch has no versions."""
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Columns of the batch that the algorithm needs, by name, one value for each token."""

    def need(self, name: str) -> torch.Tensor:
        """Return a field of this class, or a column of the batch.

        Raises TrainerError if the batch does not have it.
        """
        values = getattr(self, name) if name in COMPUTED else self.columns.get(name)
        if values is None:
            raise TrainerError(f"the algorithm needs {name}, which this batch does not have")
        found: torch.Tensor = values
        return found


TARGETS = "targets"
"""Column of `batches` with the targets of a critic."""

PREFERRED, PAIR = "preferred", "pair"
"""Columns of `batches` that `stored(..., prefer=...)` fills."""

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
    """Loss of one family of policy gradients, to be minimized."""

    @property
    def anchor(self) -> RatioTo | None:
        """Denominator of the importance ratio, or None if the loss has no ratio.

        With `behavior` the loss needs no correction, and a further one would correct twice. With
        `old` the algorithm adds the factor pi_old / mu.
        """
        return None

    @property
    def needs(self) -> frozenset[str]:
        """Names of all values that the loss reads in addition to logprobs and advantages.

        Each is one of `COMPUTED`, or a numeric column of `trajectories` or `batches`, of which
        `Tokens.need` returns a value for each token (see `trainers.batch.columns`).
        """
        return frozenset()

    @abstractmethod
    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Compute the loss of each action token, before aggregation.

        Raises TrainerError if a field or column that the loss needs is missing.
        """


class Correction(ABC):
    """Factor on each token's loss for the difference of pi_old from the behavior policy.

    It approximates pi_old / mu and belongs to a ratio pi_theta / pi_old, so that both together
    correct once. The factor covers what the ratio does not: engines and trainers compute the same
    policy with different kernels, and tokens may be versions behind.
    """

    @property
    def needs(self) -> frozenset[str]:
        """Names of all values that the correction reads, as in `Loss.needs`."""
        return frozenset({"old_logprobs"})

    @abstractmethod
    def __call__(self, tokens: Tokens) -> torch.Tensor:
        """Return the factor of each action token [action tokens], without gradient."""


@dataclass(frozen=True, slots=True)
class Exact(Correction):
    """The exact weight sg[pi_old / mu], unbiased and with unbounded variance; the default."""

    def __call__(self, tokens: Tokens) -> torch.Tensor:
        import torch

        return torch.exp(tokens.need("old_logprobs") - tokens.behavior_logprobs)

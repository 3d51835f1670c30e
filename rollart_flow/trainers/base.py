"""The protocol of trainers; `trainers.backends` holds the variants.

Every trainer passes `tests/trainers/conformance.py`: the same stored batch gives the same loss,
gradient and updated weights, to the last bit on the same machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.errors import BatchError
from rollart_flow.text import one_line
from rollart_flow.weights.folder_store import opened
from rollart_flow.weights.memory import WeightSnapshot

if TYPE_CHECKING:
    import torch

    from rollart_flow.trainers.checkpoint.checkpoint import Checkpoint
    from rollart_flow.weights.base import AdapterEntry


@dataclass(frozen=True, slots=True)
class LagStatistics:
    """Tokens that are the same number of versions behind. Fields are those of `steps.lags`."""

    lag: int
    tokens: int
    ratio_mean: float
    """Mean of w: near 1 while mu covers pi_old."""
    kl: float
    """Estimate of KL(mu || pi_old), w - 1 - log w [nats per token]."""
    ess: float
    """Effective sample size by token, (sum w)^2 / (tokens x sum w^2): 1 where all weigh alike."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results of one training step. Field names are columns of `steps`."""

    step: int
    loss: float
    grad_norm: float
    """Before clipping."""
    ratio_mean: float
    ratio_max: float
    clip_fraction: float
    kl: float
    entropy: float
    learning_rate: float
    tokens: int
    action_tokens: int
    train_s: float
    fingerprint: str
    """`weights.fingerprint` of the resulting weights, including those of the critic if any."""
    threads: int
    kernels: str
    value_loss: float | None = None
    """Mean over action tokens, without its coefficient; None without a critic."""
    mismatch_kl: float | None = None
    mismatch_ratio_max: float | None = None
    ess: float | None = None
    lags: list[LagStatistics] | None = None
    """Like the three fields before, see `Mismatch`; None if pi_old was not computed."""
    train_cpu_s: float | None = None
    """CPU seconds of the thread that computed for `train_s`."""
    skipped: str | None = None
    """Reason why the step left the weights unchanged; None for a step that trained."""


class Trainer(ABC):
    """Holds a policy's weights and optimizer; `version` counts its finished steps."""

    step_logprobs: pa.Table | None = None
    """Columns trajectory_id and logprobs (list<float32> [action tokens]) of the last step's batch,
    under the weights that the step started from; None unless `keep_logprobs` is set."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Number of the last finished step; 0 before the first."""

    @abstractmethod
    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        """Train on one batch and become version `step`.

        Args:
            step: must be `version + 1`.
            batch: rows of `trajectories` (at least token_ids, action_mask, logprobs, sampling,
                kept_token_ids) joined with `advantage` and `weight` of `batches`, in order of
                position, with all columns that the algorithm reads.

        Raises:
            BatchError: a row cannot be trained on, or the loss or gradient is not finite (weights
                unchanged).
            TrainerError: wrong step, or a column is missing.
        """

    def skip_step(self, step: int, batch: pa.Table, why: str) -> StepResult:
        """Become version `step` with unchanged weights and optimizer.

        Raises:
            BatchError: the trainer cannot skip a step.
        """
        raise BatchError(why)

    def train_or_skip(self, step: int, batch: pa.Table) -> StepResult:
        """Train on one batch as `train_step` does, or skip the step if the batch forbids it.

        A function of weights and batch alone, so that a recomputed step is skipped again.
        """
        try:
            return self.train_step(step, batch)
        except BatchError as error:
            return self.skip_step(step, batch, one_line(error))

    @abstractmethod
    def recompute_old_logprobs(self, batch: pa.Table) -> pa.Table:
        """Compute logprobs and values of rows of `trajectories` under the current weights.

        Returns:
            `old_logprobs`, with a critic `values`, and `reference_logprobs` if the estimator of
            advantages reads them: list<float32> [action tokens], in order.

        Raises:
            TrainerError: a row cannot be scored.
        """

    @abstractmethod
    def weights(self) -> dict[str, torch.Tensor]:
        """Return copies of the current weights under Hugging Face names, detached."""

    @property
    def adapter(self) -> AdapterEntry | None:
        """The adapter that versions consist of; None if whole weights are published."""
        return None

    def snapshot_weights(self) -> WeightSnapshot:
        """Return the tensors to publish, for a thread that does so while the next step trains: the
        matrices of `adapter`, or the weights as `weights` returns them.

        The trainer copies them before it changes them, unless the thread has."""
        return WeightSnapshot(self.weights())

    @property
    def checksum(self) -> str | None:
        """`fingerprint` of the tensors to publish if known, as after a training step, else None."""
        return None

    def offload(self) -> int:
        """Free the memory that this process holds on its device, and return its size in bytes.

        Only `version`, `checksum` and `reload` may be used before the next `reload`. A trainer that
        cannot free the memory keeps it and returns 0 (`TrainerCapabilities.offloads`).
        """
        return 0

    def reload(self) -> None:  # noqa: B027  by default `offload` frees nothing
        """Take back the memory that `offload` freed, with the same contents."""

    @abstractmethod
    def snapshot(self) -> Checkpoint:
        """Return a checkpoint with whole tensors in memory, for a fork."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a checkpoint to a folder atomically; it replaces one that is there.

        Raises:
            TrainerError: the checkpoint cannot be written; an older one is unchanged.
        """

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Begin to save the current version; the returned function waits until it is saved.

        The caller must not train before that. Either call raises the errors of `save`.
        """
        self.save(folder)
        return lambda: None

    def load_from(self, address: str) -> None:
        """Restore the checkpoint at a path or at an address in S3.

        Raises:
            StoreError: the checkpoint cannot be read from S3.
            TrainerError: see `load`.
        """
        with opened(address) as folder:
            self.load(folder)

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restore a checkpoint that `save` wrote.

        Raises:
            TrainerError: the folder has no checkpoint, or a checkpoint of another model.
        """

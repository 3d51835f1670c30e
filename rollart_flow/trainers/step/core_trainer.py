"""One training step of any `Algorithm` on the Qwen3 model, whoever holds the weights, float32.

Recomputes the logprobs of the stored tokens under their stored sampling, takes one or more AdamW
updates on a batch, and becomes the next version. What differs between trainers is where the weights
lie (`TrainState`) and who computes which rows (`Ranks`). The invariant (design, replay): the same
weights, optimizer state and stored batch give the same loss, gradient norm and weights to the last
bit, in as many processes on the same machine and kind of device; a step that fails leaves no trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.batch.buckets import buckets
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.batch.training_batch import TrainingBatch, read_batch, read_scorable
from rollart_flow.trainers.checkpoint.checkpoint import RNG, Checkpoint
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import TrainerSettings
from rollart_flow.trainers.step.kernels import describe_kernels, pinned
from rollart_flow.trainers.step.mismatch import measure
from rollart_flow.trainers.step.precision import computed_in
from rollart_flow.trainers.step.reference import Reference
from rollart_flow.trainers.step.running import PolicyModel
from rollart_flow.trainers.step.scoring import OldPolicy, recompute_old_logprobs
from rollart_flow.trainers.step.train_state import TrainState
from rollart_flow.trainers.step.undo import undone_on_error
from rollart_flow.trainers.step.update import Tally, Updater
from rollart_flow.weights.fingerprint import fingerprint


class CoreTrainer(Trainer):
    """Trains a Qwen3 model. Not for use from two threads; every rank makes the same calls."""

    def __init__(
        self, learned: TrainState, algorithm: Algorithm, settings: TrainerSettings, ranks: Ranks
    ) -> None:
        """Start at version 0.

        Args:
            learned: the initial weights and an optimizer; the weights are also the reference
                policy where the algorithm needs one.
            algorithm: the loss.
            settings: how a batch is cut, the optimizer, threads.
            ranks: who trains together.
        """
        self.settings = settings
        self.algorithm = algorithm
        self._learned = learned
        self._ranks = ranks
        self._model, self._critic = self._computed(learned.model), learned.critic
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._version = 0
        self._checksum: str | None = None
        self._reference = Reference(self._model.config, self.weights, algorithm, ranks.device)

    @property
    def version(self) -> int:
        """Number of the last finished step; 0 before the first."""
        return self._version

    @property
    def checksum(self) -> str | None:
        """See `Trainer.checksum`; the fingerprint of a step is that of its critic too."""
        return self._checksum

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        """Train on one batch. See `Trainer.train_step`."""
        if step != self._version + 1:
            raise TrainerError(f"step {step} cannot follow version {self._version}")
        started = time.perf_counter()
        rows = read_batch(batch, self.algorithm)
        rows.check(self._model.config.vocab_size)
        self._check_passes(rows)
        if rows.rows < self.settings.minibatches:
            raise TrainerError(
                f"step {step}: {rows.rows} trajectories cannot be cut into "
                f"{self.settings.minibatches} minibatches; lower train.minibatches"
            )
        rate = self.settings.optimizer.learning_rate(step)
        learned, several = self._learned, self.settings.minibatches * self.settings.epochs > 1
        undone = undone_on_error(learned, self._generator, several=several)
        with pinned(self.settings.threads), undone:
            tally, grad_norm, start = self._train(step, rows, rate)
        self._version, self._checksum = step, None
        self._reference.reached(step, self.weights)
        train_s = time.perf_counter() - started
        made = fingerprint(learned.whole(learned.everything()))
        self._checksum = made if self._critic is None else None
        return StepResult(
            step=step,
            loss=tally.loss,
            grad_norm=grad_norm,
            ratio_mean=tally.ratio / tally.count,
            ratio_max=tally.ratio_max,
            clip_fraction=tally.clipped / tally.count,
            kl=tally.kl / tally.count,
            entropy=tally.entropy / tally.count,
            learning_rate=rate,
            tokens=int(rows.tokens.starts[-1]),
            action_tokens=int(rows.actions.starts[-1]),
            train_s=train_s,
            fingerprint=made,
            threads=self.settings.threads,
            kernels=describe_kernels(self._ranks, self.settings.dtype),
            value_loss=None if self._critic is None else tally.value_loss / tally.count,
            **_mismatch(start, rows),
        )

    def recompute_old_logprobs(self, batch: pa.Table) -> pa.Table:
        """One forward pass over a batch. See `Trainer.recompute_old_logprobs`."""
        rows = read_scorable(batch)
        rows.check(self._model.config.vocab_size)
        self._check_passes(rows)
        with pinned(self.settings.threads):
            start = self._assess(rows)
        found = {"old_logprobs": start.logprobs, "values": start.values}
        starts = pa.array(rows.actions.starts, pa.int32())
        return pa.table(
            {
                name: pa.ListArray.from_arrays(starts, pa.array(values, pa.float32()))
                for name, values in found.items()
                if values is not None
            }
        )

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of the current weights in Hugging Face names, float32."""
        learned = self._learned
        return {name: tensor.clone() for name, tensor in learned.whole(learned.policy()).items()}

    def snapshot(self) -> Checkpoint:
        """Whole tensors of everything that a checkpoint needs. See `Trainer.snapshot`."""
        return replace(
            self._checkpoint(),
            weights=self._learned.whole(self._learned.policy()),
            state=self._learned.whole(self._state()),
        )

    def _checkpoint(self) -> Checkpoint:
        """A checkpoint without its tensors."""
        return Checkpoint(
            version=self._version,
            model=self._model.config.as_json(),
            settings=asdict(self.settings),
            learning_rate=self.settings.optimizer.learning_rate(max(1, self._version)),
            reference=self._reference.name,
            weights={},
            state={},
        )

    def _state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint needs beside the policy's weights, laid out as it is trained."""
        return {
            RNG: self._generator.get_state(),
            **self._reference.state(),
            **self._learned.state(),
        }

    def _check_shape(self, model: Mapping[str, Any], folder: Path) -> None:
        if dict(model) != self._model.config.as_json():
            raise TrainerError(f"checkpoint {folder} is of a model of another shape")

    def _restore(self, found: Checkpoint, folder: Path) -> None:
        """Go on from a checkpoint, under this trainer's own settings."""
        self._check_shape(found.model, folder)
        self._learned.check(found, folder)
        self._reference.restore(found, folder)
        self._learned.restore(found)
        self._generator.set_state(found.state[RNG])
        self._version, self._checksum = found.version, None

    def _train(
        self, step: int, batch: TrainingBatch, rate: float
    ) -> tuple[Tally, float, OldPolicy | None]:
        """All updates of one step: (sums, norm of the last gradient before clipping, the start)."""
        tally, start = Tally(), self._start(batch)
        updater, learned = self._updater(), self._learned
        learned.set_rate(rate)
        grad_norm = math.nan
        for _ in range(self.settings.epochs):
            for rows in self._minibatches(batch.rows):
                learned.forget_gradient()
                share = len(rows) / batch.rows / self.settings.epochs
                updater.accumulate(batch, rows, share, tally, start)
                grad_norm = learned.clip()
                loss = float(self._ranks.sum(np.array([tally.loss]))[0])
                if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                    raise TrainerError(
                        f"step {step}: loss {loss} or gradient norm {grad_norm} is not "
                        "finite; weights are unchanged, look at the batch's logprobs and advantages"
                    )
                learned.update()
        learned.forget_gradient()
        tally.share(self._ranks)
        return tally, grad_norm, start

    def _updater(self) -> Updater:
        frozen = self._reference.model
        return Updater(
            self._model, self.algorithm, None if frozen is None else self._computed(frozen),
            self.settings.micro_batch_tokens, self._critic, self._ranks, self._learned.run,
        )  # fmt: skip

    def _computed(self, model: PolicyModel) -> PolicyModel:
        """A model as passes compute it."""
        return computed_in(self.settings.dtype, model, self._ranks.device)

    def _start(self, batch: TrainingBatch) -> OldPolicy | None:
        """Where the step starts from: still to be filled in by the first update, which sees the
        whole batch, or recomputed where somebody needs it and it does not."""
        if self.settings.minibatches == 1:
            return OldPolicy.empty(batch, self._critic)
        critic = self.algorithm.critic
        clips_values = critic is not None and critic.clip > 0
        if clips_values or self.settings.mismatch or "old_logprobs" in self.algorithm.needs:
            return self._assess(batch)
        return None

    def _check_passes(self, batch: TrainingBatch) -> None:
        """Refuse in every rank what one of them would refuse while the others wait for it."""
        if self._ranks.count > 1:
            for rows in buckets(batch.used_lengths, self.settings.micro_batch_tokens):
                batch.micro_batch(rows, self._model.config.vocab_size)

    def _assess(self, batch: TrainingBatch) -> OldPolicy:
        tokens = self.settings.micro_batch_tokens
        try:
            run = self._learned.run
            return recompute_old_logprobs(
                self._model, batch, tokens, self._critic, self._ranks, run
            )
        finally:
            self._learned.settle()

    def _minibatches(self, rows: int) -> list[Array]:
        """Rows of each minibatch, shuffled unless there is only one."""
        if self.settings.minibatches == 1:
            return [np.arange(rows)]
        order = torch.randperm(rows, generator=self._generator).numpy()
        return list(np.array_split(order, self.settings.minibatches))


def _mismatch(start: OldPolicy | None, batch: TrainingBatch) -> dict[str, Any]:
    """Columns of `steps` about the mismatch; none where the start of the step is not known."""
    if start is None:
        return {}
    found = measure(start.logprobs, batch.behavior_logprobs, batch.columns.lags)
    return {field.name: getattr(found, field.name) for field in fields(found)}

"""One training step of any `Algorithm` and model, in float32, for every backend.

The step recomputes the logprobs of the stored tokens under their stored sampling, takes one or more
AdamW updates on a batch, and becomes the next version. Trainers differ in the place of the weights
(`TrainState`) and in the rows that each rank computes (`Ranks`). The invariant (replay): the same
weights, optimizer state and stored batch give the same loss, gradient norm and weights to the last
bit, in as many processes on the same machine and kind of device; a step that fails changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import BatchError, TrainerError
from rollart_flow.text import counted
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.batch.training_batch import TrainingBatch, read_batch, read_scorable
from rollart_flow.trainers.checkpoint.checkpoint import RNG, Checkpoint
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.kernels import describe_kernels, pinned
from rollart_flow.trainers.step.mismatch import mismatch_columns
from rollart_flow.trainers.step.offload import HostCopies
from rollart_flow.trainers.step.reference import Reference
from rollart_flow.trainers.step.running import PolicyModel, computed_in
from rollart_flow.trainers.step.scoring import OldPolicy, recompute_old_logprobs, reference_logprobs
from rollart_flow.trainers.step.train_state import TrainState, undone_on_error
from rollart_flow.trainers.step.update import Tally, Updater
from rollart_flow.weights.base import AdapterEntry
from rollart_flow.weights.fingerprint import fingerprint
from rollart_flow.weights.memory import ReusedMemory, WeightSnapshot


class CoreTrainer(Trainer):
    """Trains a policy; not safe for concurrent use. Every rank makes the same calls."""

    def __init__(
        self, state: TrainState, algorithm: Algorithm, settings: RankSettings, ranks: Ranks
    ) -> None:
        """Start at version 0.

        Args:
            state: initial weights and optimizer; the weights are also the reference policy if the
                algorithm needs one.
            algorithm: the loss.
            settings: settings of batches, optimizer and threads.
            ranks: ranks of the trainer.
        """
        self.settings = replace(settings, packed=settings.packed and state.model.packs)
        self.algorithm = algorithm
        self._train_state = state
        self._ranks = ranks
        self._model, self._critic = self._computed(state.model), state.critic
        self._images = self._model.config.pictures()
        self._host_copies = HostCopies()
        self._copies = ReusedMemory()
        self._published = WeightSnapshot({})
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._version = 0
        self._checksum: str | None = None
        self._reference = Reference(self._model.config, self.weights, algorithm, ranks.device)
        if (frozen := self._reference.model) is not None and not frozen.packs:
            self.settings = replace(self.settings, packed=False)

    @property
    def version(self) -> int:
        return self._version

    @property
    def checksum(self) -> str | None:
        """Fingerprint of the published tensors; None with a critic, whose head is in a step's."""
        return self._checksum

    @property
    def adapter(self) -> AdapterEntry | None:
        lora, base = self.settings.lora, self.settings.adapter_base
        if lora is None or base is None:
            return None
        return AdapterEntry(base, lora.rank, lora.alpha, self._train_state.base_checksum)

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        if step != self._version + 1:
            raise TrainerError(f"step {step} cannot follow version {self._version}")
        started, cpu_started, self.step_logprobs = time.perf_counter(), time.thread_time(), None
        rows = read_batch(batch, self.algorithm, packed=self.settings.packed, pictures=self._images)
        self._check(rows)
        if (episodes := rows.count(np.arange(rows.rows))) < self.settings.minibatches:
            raise TrainerError(
                f"step {step}: {counted(episodes, 'trajectory')} cannot be cut into "
                f"{self.settings.minibatches} minibatches; lower train.minibatches"
            )
        rate = self.settings.optimizer.learning_rate(step)
        state, several = self._train_state, self.settings.minibatches * self.settings.epochs > 1
        undone = undone_on_error(state, self._generator, several=several)
        with pinned(self.settings.threads), undone:
            tally, grad_norm, old_policy = self._train(step, rows, rate)
        self._version, self._checksum = step, None
        self._reference.reached(step, self.weights)
        train_s, train_cpu_s = time.perf_counter() - started, time.thread_time() - cpu_started
        made = fingerprint(state.whole(state.everything()))
        self._checksum = made if self._critic is None else None
        if self.settings.keep_logprobs and old_policy is not None:
            self.step_logprobs = pa.table(
                [rows.names, rows.action_lists(old_policy.logprobs)], ["trajectory_id", "logprobs"]
            )
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
            train_cpu_s=train_cpu_s,
            fingerprint=made,
            threads=self.settings.threads,
            kernels=describe_kernels(self._ranks, self.settings),
            value_loss=None if self._critic is None else tally.value_loss / tally.count,
            **({} if old_policy is None else mismatch_columns(old_policy.logprobs, rows)),
        )

    def skip_step(self, step: int, batch: pa.Table, why: str) -> StepResult:
        self._version, state, self.step_logprobs = step, self._train_state, None
        self._reference.reached(step, self.weights)
        made = fingerprint(state.whole(state.everything()))
        self._checksum = made if self._critic is None else None
        counts = (pc.list_value_length(batch["token_ids"]), pc.list_flatten(batch["action_mask"]))
        tokens, action_tokens = (pc.sum(count).as_py() or 0 for count in counts)
        return StepResult(
            step=step, loss=0.0, grad_norm=0.0, ratio_mean=0.0, ratio_max=0.0, clip_fraction=0.0,
            kl=0.0, entropy=0.0, learning_rate=self.settings.optimizer.learning_rate(step),
            tokens=tokens, action_tokens=action_tokens, train_s=0.0, fingerprint=made,
            threads=self.settings.threads, kernels=describe_kernels(self._ranks, self.settings),
            skipped=why,
        )  # fmt: skip

    def recompute_old_logprobs(self, batch: pa.Table) -> pa.Table:
        rows = read_scorable(batch, packed=self.settings.packed, pictures=self._images)
        self._check(rows)
        with pinned(self.settings.threads):
            old_policy = self._recompute(rows)
            found = {"old_logprobs": old_policy.logprobs, "values": old_policy.values}
            if self.algorithm.advantage.needs_reference and (frozen := self._reference.model):
                model, tokens = self._computed(frozen), self.settings.micro_batch_tokens
                found["reference_logprobs"] = reference_logprobs(model, rows, tokens, self._ranks)
        given = {name: values for name, values in found.items() if values is not None}
        return pa.table({name: rows.action_lists(values) for name, values in given.items()})

    def weights(self) -> dict[str, torch.Tensor]:
        return self._copies.copies(self._train_state.whole(self._train_state.policy()))

    def snapshot_weights(self) -> WeightSnapshot:
        if self._ranks.count > 1:  # the copy takes all ranks
            return WeightSnapshot(self._copies.copies(self._whole_version()))
        self._published = WeightSnapshot(self._whole_version(), self._copies)
        return self._published

    def _whole_version(self) -> dict[str, torch.Tensor]:
        return self._train_state.whole(self._train_state.published())

    def offload(self) -> int:
        self._published.settle()
        self._train_state.settle()
        frozen = self._reference.model
        reference = [] if frozen is None else [*frozen.parameters()]
        return self._host_copies.take([*self._train_state.resident(), *reference])

    def reload(self) -> None:
        self._host_copies.restore()

    def snapshot(self) -> Checkpoint:
        return replace(
            self._checkpoint(),
            weights=self._whole_version(),
            state=self._train_state.whole(self._checkpoint_tensors()),
        )

    def _checkpoint(self) -> Checkpoint:
        """Return a checkpoint without its tensors."""
        return Checkpoint(
            version=self._version,
            model=self._model.config.as_json(),
            settings=asdict(self.settings),
            learning_rate=self.settings.optimizer.learning_rate(max(1, self._version)),
            reference=self._reference.name,
            weights={},
            state={},
            base_checksum=self._train_state.base_checksum,
        )

    def _checkpoint_tensors(self) -> dict[str, torch.Tensor]:
        """Return the checkpoint's tensors besides the policy, in their layout for training."""
        return {
            RNG: self._generator.get_state(),
            **self._reference.state(),
            **self._train_state.state(),
        }

    def _check_shape(self, model: Mapping[str, Any], folder: Path) -> None:
        if dict(model) != self._model.config.as_json():
            raise TrainerError(f"checkpoint {folder} is of a model of another shape")

    def _restore(self, found: Checkpoint, folder: Path) -> None:
        """Continue from a checkpoint, with this trainer's own settings."""
        self._check_shape(found.model, folder)
        self._published.settle()
        self._train_state.check(found, folder)
        self._reference.restore(found, folder)
        self._train_state.restore(found)
        self._generator.set_state(found.state[RNG])
        self._version, self._checksum = found.version, None

    def _train(
        self, step: int, batch: TrainingBatch, rate: float
    ) -> tuple[Tally, float, OldPolicy | None]:
        """Run all updates; return (sums, last gradient norm before clipping, old policy)."""
        tally, old_policy = Tally(), self._begin(batch)
        updater, state = self._updater(batch), self._train_state
        episodes = batch.count(np.arange(batch.rows))
        state.set_rate(rate)
        grad_norm = math.nan
        for _ in range(self.settings.epochs):
            for rows in batch.minibatches(self.settings.minibatches, self._generator):
                state.forget_gradient()
                share = batch.count(rows) / episodes / self.settings.epochs
                updater.accumulate(batch, rows, share, tally, old_policy)
                grad_norm = state.clip()
                loss = float(self._ranks.sum(np.array([tally.loss]))[0])
                if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                    raise BatchError(
                        f"step {step}: loss {loss} or gradient norm {grad_norm} is not "
                        "finite; weights are unchanged, look at the batch's logprobs and advantages"
                    )
                self._published.settle()
                state.update()
        state.forget_gradient()
        tally.all_reduce(self._ranks)
        return tally, grad_norm, old_policy

    def _updater(self, batch: TrainingBatch) -> Updater:
        frozen = self._reference.model
        # Steps of padded rows were recorded with logprobs that every epoch computed again.
        kept = np.full(len(batch.behavior_logprobs), np.nan, np.float32) if batch.packed else None
        return Updater(
            self._model, self.algorithm, None if frozen is None else self._computed(frozen),
            self.settings.micro_batch_tokens, self._critic, self._ranks, self._train_state.run,
            kept,
        )  # fmt: skip

    def _computed(self, model: PolicyModel) -> PolicyModel:
        """Return a model that computes in the dtype of passes."""
        return computed_in(self.settings.dtype, model, self._ranks.device)

    def _begin(self, batch: TrainingBatch) -> OldPolicy | None:
        """Return the scores under the weights that the step starts from.

        With one minibatch the first update fills them in. Otherwise they are recomputed if the
        algorithm or a statistic needs them, and None if not.
        """
        if self.settings.minibatches == 1:
            return OldPolicy.empty(batch, self._critic)
        critic = self.algorithm.critic
        clips_values = critic is not None and critic.clip > 0
        wanted = self.settings.mismatch or self.settings.keep_logprobs
        if clips_values or wanted or "old_logprobs" in self.algorithm.needs:
            return self._recompute(batch)
        return None

    def _check(self, batch: TrainingBatch) -> None:
        """Refuse a bad row in every rank, so that no rank waits for one that refused it alone."""
        batch.check(self._model.config.vocab_size)
        if self._ranks.count > 1:
            tokens = self.settings.micro_batch_tokens
            batch.check_passes(tokens, self._model.config.vocab_size)

    def _recompute(self, batch: TrainingBatch) -> OldPolicy:
        tokens = self.settings.micro_batch_tokens
        try:
            return recompute_old_logprobs(
                self._model, batch, tokens, self._critic, self._ranks, self._train_state.run
            )
        finally:
            self._train_state.settle()

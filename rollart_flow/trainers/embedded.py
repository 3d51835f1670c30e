"""The trainer that lives in this process: any `Algorithm` on the Qwen3 model, in float32 on a CPU.

Recomputes the logprobs of the stored tokens under their stored sampling, takes one or more AdamW
updates on a batch, and becomes the next version. The invariant (design, replay): the same weights,
optimizer state and stored batch give the same loss, gradient norm and weights to the last bit, in
any process of the same machine; a step that fails leaves no trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.models.folder import check_tensors, load_folder
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.batch import TrainingBatch, read_batch
from rollart_flow.trainers.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rollart_flow.trainers.kernels import describe_kernels, pinned
from rollart_flow.trainers.ragged import Array
from rollart_flow.trainers.registry import TrainerSettings
from rollart_flow.trainers.update import Tally, Updater
from rollart_flow.weights.fingerprint import fingerprint

_OPTIMIZER_TENSORS = ("step", "exp_avg", "exp_avg_sq")
_RNG = "rng"


class EmbeddedTrainer(Trainer):
    """Trains a Qwen3 model in this process. Not for use from two threads."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: TrainerSettings | None = None,
    ) -> None:
        """Start at version 0.

        Args:
            config: shape of the model.
            tensors: initial weights in Hugging Face names, copied and trained in float32; also
                the reference policy where the algorithm needs one.
            algorithm: the loss.
            settings: how a batch is cut, the optimizer, threads.

        Raises:
            WeightsError: the tensors do not fit the shape.
        """
        self.settings = settings or TrainerSettings()
        self.algorithm = algorithm
        self._model = _build(config, tensors)
        self._parameters = dict(self._model.named_parameters())
        self._optimizer = self.settings.optimizer.build(self._parameters.values())
        self._generator = torch.Generator().manual_seed(self.settings.seed)
        self._version = 0
        self._reference_name: str | None = None
        reference = None
        if algorithm.needs_reference:
            reference = _build(config, tensors).requires_grad_(False)
            self._reference_name = fingerprint(self.weights())
        self._updater = Updater(self._model, algorithm, reference, self.settings.micro_batch_tokens)

    @classmethod
    def from_folder(
        cls, folder: str | Path, algorithm: Algorithm, settings: TrainerSettings | None = None
    ) -> EmbeddedTrainer:
        """Start at version 0 with the model of a Hugging Face folder.

        Raises:
            SettingsError: there is no model, or one of another architecture.
            WeightsError: the weights are damaged, or are not those of the config.
        """
        config, tensors = load_folder(folder)
        return cls(config, tensors, algorithm, settings)

    @property
    def version(self) -> int:
        """Number of the last finished step; 0 before the first."""
        return self._version

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        """Train on one batch. See `Trainer.train_step`."""
        if step != self._version + 1:
            raise TrainerError(f"step {step} cannot follow version {self._version}")
        started = time.perf_counter()
        rows = read_batch(batch)
        rows.check(self._model.config.vocab_size)
        if rows.rows < self.settings.minibatches:
            raise TrainerError(
                f"step {step}: {rows.rows} trajectories cannot be cut into "
                f"{self.settings.minibatches} minibatches; lower train.minibatches"
            )
        rate = self.settings.optimizer.learning_rate(step)
        with pinned(self.settings.threads), self._undone_on_error():
            tally, grad_norm = self._train(step, rows, rate)
        self._version = step
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
            train_s=time.perf_counter() - started,
            fingerprint=fingerprint(self._parameters),
            threads=self.settings.threads,
            kernels=describe_kernels(),
        )

    def weights(self) -> dict[str, torch.Tensor]:
        """Copies of the current weights in Hugging Face names, float32."""
        return {name: p.detach().clone() for name, p in self._parameters.items()}

    def save(self, folder: Path) -> None:
        """Write a checkpoint; one that is there is replaced. See `Trainer.save`.

        Raises:
            TrainerError: it cannot be written; an older one is as it was.
        """
        state = {_RNG: self._generator.get_state()}
        for name, parameter in self._parameters.items():
            for kind, tensor in self._optimizer.state[parameter].items():
                state[f"{name}/{kind}"] = tensor
        checkpoint = Checkpoint(
            version=self._version,
            model=asdict(self._model.config),
            settings=asdict(self.settings),
            learning_rate=self.settings.optimizer.learning_rate(max(1, self._version)),
            reference=self._reference_name,
            weights=self._parameters,
            state=state,
        )
        write_checkpoint(Path(folder), checkpoint)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, under this trainer's own settings. See `Trainer.load`."""
        found = read_checkpoint(Path(folder))
        if dict(found.model) != asdict(self._model.config):
            raise TrainerError(f"checkpoint {folder} is of a model of another shape")
        if self._reference_name is not None and found.reference != self._reference_name:
            raise TrainerError(f"checkpoint {folder} was trained towards another reference policy")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(found.weights[name])
                state = {
                    kind: found.state[f"{name}/{kind}"]
                    for kind in _OPTIMIZER_TENSORS
                    if f"{name}/{kind}" in found.state
                }
                self._optimizer.state[parameter] = state
        self._generator.set_state(found.state[_RNG])
        self._version = found.version

    def _train(self, step: int, batch: TrainingBatch, rate: float) -> tuple[Tally, float]:
        """All updates of one step: (sums, norm of the last gradient before clipping)."""
        tally = Tally()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        grad_norm = math.nan
        for _ in range(self.settings.epochs):
            for rows in self._minibatches(batch.rows):
                self._optimizer.zero_grad(set_to_none=True)
                share = len(rows) / batch.rows / self.settings.epochs
                self._updater.accumulate(batch, rows, share, tally)
                grad_norm = self._clip()
                if not (math.isfinite(tally.loss) and math.isfinite(grad_norm)):
                    raise TrainerError(
                        f"step {step}: loss {tally.loss} or gradient norm {grad_norm} is not "
                        "finite; weights are unchanged, look at the batch's logprobs and advantages"
                    )
                self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return tally, grad_norm

    def _minibatches(self, rows: int) -> list[Array]:
        """Rows of each minibatch, shuffled unless there is only one."""
        if self.settings.minibatches == 1:
            return [np.arange(rows)]
        order = torch.randperm(rows, generator=self._generator).numpy()
        return list(np.array_split(order, self.settings.minibatches))

    def _clip(self) -> float:
        """Scale the gradient down to the largest norm; the norm before that."""
        largest = self.settings.optimizer.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), largest, foreach=False)
        return float(norm)

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """Put weights, optimizer and RNG back if anything fails; a failed step leaves no trace."""
        several = self.settings.minibatches * self.settings.epochs > 1
        weights = self.weights() if several else {}
        state = {
            parameter: {kind: tensor.clone() for kind, tensor in tensors.items()}
            for parameter, tensors in (self._optimizer.state.items() if several else ())
        }
        generator = self._generator.get_state()
        try:
            yield
        except BaseException:
            self._optimizer.zero_grad(set_to_none=True)
            self._generator.set_state(generator)
            if several:
                with torch.no_grad():
                    for name, tensor in weights.items():
                        self._parameters[name].copy_(tensor)
                self._optimizer.state.clear()
                self._optimizer.state.update(state)
            raise


def _build(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> Qwen3:
    """A model with these weights in float32."""
    check_tensors(config, tensors)
    model = Qwen3(config)
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model

"""The trainer of many processes: the policy sharded over ranks by torch's `fully_shard` (FSDP2).

Every rank is given the whole stored batch and computes the rows that `passes` gives it. The
invariants: losses, gradients and weights are those of the embedded trainer but for the order of
sums, and to the last bit those of as many ranks on the same machine; every rank returns the same.
The reference policy is whole in every rank.

Source: ROLLART section 5.1 (ActorTrain); torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.folder import load_folder
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.base import StepResult
from rollart_flow.trainers.checkpoint import is_checkpoint, read_checkpoint
from rollart_flow.trainers.ranks import Ranks, joined, lost_rank
from rollart_flow.trainers.registry import TrainerSettings
from rollart_flow.trainers.sharded import Sharded
from rollart_flow.trainers.sharded_checkpoint import begin_writing, read_shards
from rollart_flow.trainers.stepping import SteppingTrainer


class Fsdp2Trainer(SteppingTrainer):
    """One rank of a policy's trainer. All ranks make the same calls in the same order."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: TrainerSettings | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Start at version 0.

        Args:
            config: shape of the model.
            tensors: initial weights in Hugging Face names, whole and the same in every rank.
            algorithm: the loss.
            settings: how a batch is cut, the optimizer, threads.
            ranks: who trains together; by default whom this process has joined.

        Raises:
            WeightsError: the tensors do not fit the shape.
        """
        chosen, group = settings or TrainerSettings(backend="fsdp2"), ranks or joined()
        self._sharded = Sharded(config, tensors, algorithm, chosen.optimizer, group)
        super().__init__(self._sharded, algorithm, chosen, group)

    @classmethod
    def from_folder(
        cls, folder: str | Path, algorithm: Algorithm, settings: TrainerSettings | None = None
    ) -> Fsdp2Trainer:
        """Start at version 0 with the model of a Hugging Face folder, read by every rank.

        Raises:
            SettingsError: there is no model, or one of another architecture.
            WeightsError: the weights are damaged, or are not those of the config.
        """
        config, tensors = load_folder(folder)
        return cls(config, tensors, algorithm, settings)

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        """Train on one batch together. See `Trainer.train_step`.

        Raises:
            TrainerError: also where another rank is lost; this one is of no use any more.
        """
        with lost_rank(self._ranks.rank):
            return super().train_step(step, batch)

    def save(self, folder: Path) -> None:
        """Write a checkpoint; one that is there is replaced. See `Trainer.save`.

        Raises:
            TrainerError: it cannot be written; an older one is as it was.
        """
        self.begin_save(folder)()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Copy what is to be saved, and write it in a thread. See `Trainer.begin_save`."""
        checkpoint = replace(
            self._checkpoint(),
            weights={name: p.detach() for name, p in self._learned.policy.items()},
            state=self._state(),
        )
        with lost_rank(self._ranks.rank):
            return begin_writing(Path(folder), checkpoint, self._ranks)

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint of any number of ranks, or of the embedded trainer.

        See `Trainer.load`.
        """
        place = Path(folder)
        if is_checkpoint(place):
            self._restore(read_checkpoint(place), place)
            return
        with lost_rank(self._ranks.rank):
            found = read_shards(place, self._sharded, self._ranks, self._check_shape)
            self._restore(found, place)

"""The base of trainers of many processes, for any sharding of the policy.

Every rank is given the whole stored batch and computes the rows that `passes` gives it. The
invariants: losses, gradients and weights are those of the embedded trainer but for the order of
sums, and to the last bit those of as many ranks on the same machine; every rank returns the same.
The reference policy is whole in every rank.

Source: ROLLART section 5.1 (ActorTrainCls).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.language_model import ModelShape
from rollart_flow.trainers.backends.sharded_checkpoint import (
    ShardedState,
    begin_writing,
    read_shards,
)
from rollart_flow.trainers.base import StepResult
from rollart_flow.trainers.checkpoint.checkpoint import is_checkpoint, read_checkpoint
from rollart_flow.trainers.ranks import Ranks, by_itself, lost_rank
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.core_trainer import CoreTrainer
from rollart_flow.trainers.step.train_state import InitialState
from rollart_flow.weights.memory import WeightSnapshot


class DistributedTrainer(CoreTrainer):
    """One rank of a policy's trainer. All ranks make the same calls in the same order."""

    backend: ClassVar[str]
    """Name of the trainer in `train.backend`."""

    def __init__(
        self,
        config: ModelShape,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Start at version 0.

        Args:
            tensors: initial weights in Hugging Face names, whole and the same in every rank.
            ranks: the ranks of the trainer; by default this process alone, which then has the whole
                model whatever `settings.ranks` is.

        Raises:
            SettingsError: the model does not divide over the ranks, or a setting does not work on
                this machine.
            WeightsError: the tensors do not fit the shape.
            MissingExtraError: the packages of the trainer are not installed.
        """
        chosen = settings or RankSettings(backend=self.backend)
        initial = InitialState.of(config, tensors, algorithm, chosen)
        state, group = self._shard(initial, chosen, ranks or by_itself())
        self._sharded_state = state
        super().__init__(state, algorithm, chosen, group)

    @abstractmethod
    def _shard(
        self, initial: InitialState, settings: RankSettings, ranks: Ranks
    ) -> tuple[ShardedState, Ranks]:
        """Return this rank's part of the state, and the ranks with their model replicas."""

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        """Train on one batch in all ranks together; RanksLostError if another died or hangs."""
        with lost_rank(self._ranks):
            return super().train_step(step, batch)

    def recompute_old_logprobs(self, batch: pa.Table) -> pa.Table:
        with lost_rank(self._ranks):
            return super().recompute_old_logprobs(batch)

    def weights(self) -> dict[str, torch.Tensor]:
        with lost_rank(self._ranks):
            return super().weights()

    def snapshot_weights(self) -> WeightSnapshot:
        with lost_rank(self._ranks):
            return super().snapshot_weights()

    def save(self, folder: Path) -> None:
        self.begin_save(folder)()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Copy the tensors, and write them in a thread."""
        with lost_rank(self._ranks):
            weights, state = self._sharded_state.published(), self._checkpoint_tensors()
            checkpoint = replace(self._checkpoint(), weights=weights, state=state)
            finish_writing = begin_writing(Path(folder), checkpoint, self._ranks)

        def finish() -> None:
            with lost_rank(self._ranks):
                finish_writing()

        return finish

    def load(self, folder: Path) -> None:
        """Restore a checkpoint of any number of ranks, or of the embedded trainer."""
        place = Path(folder)
        if is_checkpoint(place):
            self._restore(read_checkpoint(place), place)
            return
        with lost_rank(self._ranks):
            found = read_shards(place, self._sharded_state, self._ranks, self._check_shape)
            self._restore(found, place)

"""`TrainWorker`: a trainer as a Ray actor, with the weight store that it publishes to."""

import os
from pathlib import Path

import pyarrow as pa

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.resources import CPU, ActorTrain, Placement
from rollart_flow.trainers.base import StepResult, Trainer
from rollart_flow.trainers.registry import TrainerSettings, build_trainer
from rollart_flow.weights import Manifest, WeightStore, open_weights

_NICENESS = 5
"""Of a trainer on CPUs that it shares with the streams. What these do takes moments, and many wait
for it; training takes whatever is left and loses nothing (`bench_streams` measures both)."""


class TrainWorker(ActorTrain):
    """Trains one policy, publishes its versions and saves its checkpoints."""

    def __init__(
        self,
        placement: Placement,
        *,
        settings: TrainerSettings,
        algorithm: Algorithm,
        folder: str,
        weights: str,
        weights_uri: str,
    ) -> None:
        """Args: `folder` holds the initial policy, `weights_uri` the versions to publish to."""
        super().__init__(placement)
        if placement.granted == CPU:
            os.nice(_NICENESS)
        self._trainer: Trainer = build_trainer(settings, algorithm, folder)
        self._weights: WeightStore = open_weights(weights, weights_uri)
        self._result: StepResult | None = None

    def train_step(self, step: int, batch: bytes) -> StepResult:
        """Train on one batch, given as an Arrow IPC stream; see `Trainer.train_step`.

        Asked again for the step that it trained last, it answers again.
        """
        if self._result is None or self._result.step != step:
            self._result = self._trainer.train_step(step, pa.ipc.open_stream(batch).read_all())
        return self._result

    def assess(self, batch: bytes) -> bytes:
        """What the current weights say of a batch, both as Arrow IPC; see `Trainer.assess`."""
        found = self._trainer.assess(pa.ipc.open_stream(batch).read_all())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
        return bytes(sink.getvalue())

    def publish(self) -> Manifest:
        """Publish the current weights under the current version."""
        return self._weights.publish(self._trainer.version, self._trainer.weights())

    def retain(self, newest: int, keep: frozenset[int]) -> tuple[int, ...]:
        """Remove published versions but the newest and those in `keep`; what was removed."""
        return self._weights.retain(newest, keep)

    def save(self, folder: str) -> None:
        """Save a checkpoint of the current version."""
        self._trainer.save(Path(folder))

    def load(self, folder: str) -> int:
        """Restore a checkpoint; its version."""
        self._result = None
        self._trainer.load(Path(folder))
        return self._trainer.version

    def version(self) -> int:
        """Number of the last finished step."""
        return self._trainer.version

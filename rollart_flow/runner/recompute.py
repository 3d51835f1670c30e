"""Recovery of a resumed trainer to the run's current version.

Each step after the newest checkpoint is recomputed from its stored batch. The result must match the
recorded one to the last bit, as its fingerprint shows.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from rollart_flow.errors import RunFailedError
from rollart_flow.resources import TypedCluster
from rollart_flow.rows import to_ipc
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.runner.retrain import bring_to
from rollart_flow.store import Run
from rollart_flow.telemetry import OnProgress
from rollart_flow.types import Event, EventKind

if TYPE_CHECKING:
    from rollart_flow.trainers.base import StepResult
    from rollart_flow.trainers.worker import TrainWorker


class _Workers:
    """The trainer's workers as one trainer; implements `retrain.Retrainable`."""

    def __init__(self, trainers: TypedCluster[TrainWorker]) -> None:
        self._trainers = trainers

    def load_from(self, address: str) -> None:
        """Load a checkpoint in all workers."""
        self._trainers.call.load(address)

    def train_step(self, step: int, batch: pa.Table) -> StepResult:
        """Train on a batch in all workers and return the first worker's result."""
        return self._trainers.call.train_step(step, to_ipc(batch))


def catch_up(
    uri: str, processes: RunProcesses, on_progress: OnProgress, *, accept_divergence: bool = False
) -> None:
    """Load the newest checkpoint and recompute the steps after it.

    Raises:
        RunFailedError: a recomputed step differs from the recorded one, and `accept_divergence` is
            false.
    """
    workers = _Workers(processes.trainers)
    for again in bring_to(Run(uri), workers, processes.recovered.version, on_progress):
        if again.same_weights:
            continue
        recorded, recomputed = (
            str(facts["fingerprint"]) for facts in (again.recorded, again.recomputed)
        )
        if not accept_divergence:
            raise RunFailedError(
                f"step {again.step} recomputed from its batch gives other weights "
                f"({recomputed[:12]}) than recorded ({recorded[:12]}); "
                "resume with --accept-divergence to go on from the recomputed ones"
            )
        detail = {"recorded": recorded, "recomputed": recomputed}
        event = Event(EventKind.DIVERGENCE, str(again.step), step=again.step, detail=detail)
        processes.buffer.call.report([(datetime.now(UTC), event)])

"""The coordinator: the ControlPlane of a run in one Ray actor, without token data.

All parts of a run exchange small messages with it: the task source requests attempts, rollout
workers request permission and cancellations, the batch source requests batches, the train operator
reports steps, and the evaluation source asks which version is due. Its state can be rebuilt from
the tables (`operators.recovery`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollart_flow.control.inference.health import HealthLimits
from rollart_flow.control.loop.waits import Signal, Watchdog, describe, waiting
from rollart_flow.control.plane import ControlPlane, EngineWorkers, PlaneSettings, PlaneState
from rollart_flow.control.protocols import Cancellation
from rollart_flow.control.schedule.declarations import Phase
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.scheduler.curriculum import Curriculum
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.worker import EngineWorker
from rollart_flow.errors import RollartError
from rollart_flow.operators.rebinding import Rebinding, Spawning
from rollart_flow.operators.recovery import RecoveredRun
from rollart_flow.operators.remote import EventSender, RemoteCommands
from rollart_flow.operators.tasks import task_stream
from rollart_flow.resources import Remote, TypedCluster, WorkerHandle, register
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.reasons import failures, reason
from rollart_flow.rows import to_ipc
from rollart_flow.types import Assignment, Batch, Task

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor

STALL_S = 120.0
"""Time without any progress after which the pending waits are reported as an event [s]."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of the pipeline that the coordinator needs."""

    sources: tuple[Any, ...]
    task_seed: int
    task_weights: dict[str, float] | None
    domains: tuple[str, ...]
    """Names of the domains that run tasks."""
    curriculum: Curriculum | None
    """Curriculum that selects tasks, or None to admit every task."""
    rollout: RolloutSettings
    schedule: Schedule
    steps: int
    evaluate_every: int | None
    """Number of versions between evaluations, or None if the run has no evaluation."""
    health: HealthLimits
    """Health limits of engine workers."""
    spawning: Spawning | None
    """How to start more engine workers if nodes may join, or None if no node will join."""


class CoordinatorActor:
    """Actor that exposes the scheduler and the controller to the operators."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._stopped = False
        self._all_admitted = False
        self._changed = Signal()

    @register("rank_zero")
    async def start(
        self,
        recovered: RecoveredRun,
        buffer: "Remote[BufferActor]",
        engines: TypedCluster[EngineWorker],
    ) -> None:
        """Build the control plane at the state that was recovered from the tables."""
        settings, version = self._settings, recovered.version
        self._buffer, self._recorded = buffer, version
        self._events = EventSender(buffer)
        self._due = recovered.due_versions(settings.steps, settings.evaluate_every)
        self._unevaluated = set(self._due)
        self._handles = {worker.name: worker for worker in engines.workers}
        self._plane = ControlPlane(
            PlaneSettings(
                settings.schedule,
                settings.rollout,
                settings.steps,
                settings.curriculum,
                settings.task_seed,
            ),
            _engine_workers(engines, version),
            self._tasks_from,
            buffer.port,
            self._events.emit,
            PlaneState(version, recovered.control, recovered.untrained),
        )
        self._scheduler, self._controller = self._plane.scheduler, self._plane.controller
        self._following = asyncio.create_task(self._plane.follow())
        self._watches = [asyncio.create_task(self._plane.watch(settings.health))]
        if settings.spawning is not None:
            self._watches.append(asyncio.create_task(self._rebind(settings.spawning)))
        self._watchdog = Watchdog(self._events.emit, STALL_S)
        freeze_heap()

    def _tasks_from(self, cursor: int) -> Iterator[tuple[Task, int]]:
        """Return tasks with their cursors, from a cursor on."""
        settings = self._settings
        stream = task_stream(
            settings.sources,
            seed=settings.task_seed,
            weights=settings.task_weights,
            domains=settings.domains,
        )
        rest = islice(stream, cursor, None)
        return ((task, place) for place, task in enumerate(rest, cursor))

    # Admission.

    @register("rank_zero")
    async def admit(self, source: str, index: int, most: int) -> tuple[Assignment, ...]:
        """Wait for and return the index-th block of a source; it is empty if the run ends."""
        assignments = await self._scheduler.admit(source, index, most)
        self._all_admitted = not assignments
        return assignments

    @register("rank_zero")
    async def permit(
        self, worker: str, asked: Sequence[str], started: Sequence[tuple[str, int]]
    ) -> list[Cancellation | None]:
        """Exchange the messages that a rollout worker has gathered.

        Args:
            worker: name of the rollout worker.
            asked: attempts that are about to start.
            started: attempts that have their first token, and the policy version of that token.

        Returns:
            For each attempt of `asked`, None if it may start, or the cancellation that ends it.
        """
        for trajectory_id, version in started:
            await self._scheduler.started(trajectory_id, version)
        return [await self._scheduler.permit(trajectory_id, worker) for trajectory_id in asked]

    @register("rank_zero")
    async def cancellations(self, worker: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """Wait for a rollout worker's cancellations past a cursor."""
        return await self._scheduler.cancellations(worker, after)

    @register("rank_zero")
    async def revive(self, worker: str) -> tuple[WorkerHandle[EngineWorker], ...]:
        """Wait for the replacements of a lost engine worker: itself, others, or none ever."""
        names = await self._plane.revive(worker)
        return tuple(self._handles[name] for name in names)

    async def _rebind(self, spawning: Spawning) -> None:
        rebinding = Rebinding(
            self._handles, self._plane.engines, spawning, self._events.emit, self._bound
        )
        try:
            await rebinding.run()
        except* failures(RollartError) as errors:
            self._scheduler.fail(f"engine workers cannot be moved: {reason(errors.exceptions[0])}")

    def _bound(self, bindings: pa.Table) -> None:
        self._buffer.call.commit.start({"bindings": to_ipc(bindings)})

    # Training.

    @register("rank_zero")
    async def next_batch(self, step: int) -> Batch | None:
        """Return the batch of a step, or None after the last step or once the run stops.

        See `control.training.controller.AsyncController.next_batch`.
        """
        if self._stopped:
            return None
        batch = asyncio.ensure_future(self._controller.next_batch(step))
        stop = asyncio.ensure_future(self._wait_until_stopped())
        await asyncio.wait((batch, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not batch.done() or self._scheduler.failure is not None:
            batch.cancel()
            await asyncio.wait((batch,))
            return None
        return batch.result()

    @register("rank_zero")
    async def phases(self, step: int) -> dict[str, float]:
        """Return the seconds of the phases that led to a step.

        The phases are the wait for the batch, and publishing, reading, and the swap to the weights
        of the preceding step. The call waits for a swap that is under way. If the schedule swaps
        after training, the swap is the one that followed the preceding step.
        """
        await self._controller.exchanged()
        now = self._controller.phases(step)
        ahead = self._settings.schedule.before_training
        if Phase.UPDATE not in ahead:
            before = self._controller.phases(step - 1)
            suspend_s = (now if Phase.SUSPEND in ahead else before).suspend_s
            now = replace(before, wait_s=now.wait_s, suspend_s=suspend_s, push_s=now.push_s)
        return asdict(now)

    @register("rank_zero")
    async def trained(self, step: int, push_s: float | None) -> frozenset[int]:
        """Mark a step as recorded, and return the versions that evaluation still needs.

        See `control.training.controller.AsyncController.trained`.
        """
        self._recorded = max(self._recorded, step)
        self._changed.notify()
        await self._controller.trained(step, push_s)
        return frozenset(self._unevaluated)

    @register("rank_zero")
    async def publishing(self, version: int) -> None:
        """Mark a version as being published."""
        self._controller.publishing(version)

    @register("rank_zero")
    async def published(self, version: int, push_s: float) -> None:
        """Mark a version as readable from the weight store; publishing took `push_s` seconds."""
        self._controller.published(version, push_s)

    # Evaluation.

    @register("rank_zero")
    async def next_evaluation(self, index: int) -> int | None:
        """Wait for and return the index-th version to evaluate, or None if no more are due.

        The call returns once the version's step is recorded; the weights of a version that is
        evaluated are published before that.
        """
        if index >= len(self._due):
            return None
        version = self._due[index]
        while self._recorded < version and not self._stopped:
            with waiting(f"version {version}"):
                await self._changed.wait()
        return version if self._recorded >= version and not self._stopped else None

    @register("rank_zero")
    async def evaluated(self, version: int) -> None:
        """Mark a version's scores as recorded."""
        self._unevaluated.discard(version)

    # End of the run.

    @register("rank_zero")
    async def admits(self) -> bool:
        """Return whether more attempts may be admitted."""
        return not (self._stopped or self._all_admitted)

    @register("rank_zero")
    async def failed(self) -> str | None:
        """Wait until the run fails or is stopped; return the failure message if it failed."""
        failure = asyncio.ensure_future(self._scheduler.failed())
        stop = asyncio.ensure_future(self._wait_until_stopped())
        await asyncio.wait((failure, stop), return_when=asyncio.FIRST_COMPLETED)
        failure.cancel()
        stop.cancel()
        return None if self._scheduler.failure is None else self._scheduler.failure.message

    @register("rank_zero")
    async def stop(self) -> None:
        """Stop admission and cancel all attempts in flight."""
        self._stopped = True
        self._changed.notify()
        self._scheduler.stop()
        for task in self._watches:
            task.cancel()
        await self._controller.close()

    async def _wait_until_stopped(self) -> None:
        while not self._stopped:
            await self._changed.wait()

    @register("rank_zero")
    async def waits(self) -> str:
        """Describe all pending waits in one line."""
        return describe(asyncio.get_running_loop())


def _engine_workers(engines: TypedCluster[EngineWorker], version: int) -> EngineWorkers:
    workers = engines.workers
    return EngineWorkers(
        [RemoteCommands(worker) for worker in workers],
        version,
        sliding=[worker.name for worker in workers if worker.placement.shares],
        prefill=[w.name for w in workers if w.placement.role == EnginePhase.PREFILL],
    )

"""RunPlane: the ControlPlane of a run with its clients of other processes and its background tasks.

A coordinator whose process died continues in another one: the tables have its groups and batches,
the engines have their version and whether they are suspended, and the buffer goes on.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rollart_flow.control.inference.health import HealthLimits
from rollart_flow.control.loop.waits import Watchdog
from rollart_flow.control.plane import ControlPlane, EngineWorkers, PlaneSettings, PlaneState
from rollart_flow.control.schedule.declarations import Phase
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.scheduler.curriculum import Curriculum
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.engines.base import EnginePhase
from rollart_flow.envs.base import Domain
from rollart_flow.operators.background import begin
from rollart_flow.operators.rebinding import Rebinding, Spawning
from rollart_flow.operators.recovery import RecoveredRun
from rollart_flow.operators.remote import EventSender, RemoteCommands
from rollart_flow.operators.task_feed import TaskFeed
from rollart_flow.operators.task_gate import TaskGate, from_thread, run_admissions
from rollart_flow.operators.tasks import task_stream
from rollart_flow.resources import Remote, TypedCluster, WorkerHandle
from rollart_flow.resources.blocking import report_waits
from rollart_flow.resources.nodes import end_actor
from rollart_flow.resources.reasons import deaths
from rollart_flow.rows import to_ipc
from rollart_flow.timeouts import timeout
from rollart_flow.types import Task
from rollart_flow.types.verdicts import Admitted

if TYPE_CHECKING:
    from rollart_flow.engines.worker import EngineWorker
    from rollart_flow.operators.buffer import BufferActor

STALL_S = 120.0
"""Time without any progress after which the pending waits are reported as an event [s]."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of the pipeline that the coordinator needs."""

    run: str
    """Address of the run."""
    sources: tuple[Any, ...]
    task_seed: int
    task_weights: dict[str, float] | None
    domains: tuple[Domain, ...]
    """Domains that run tasks."""
    admitted: Admitted | None
    """Rule by which tasks are admitted; None: that of each domain."""
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


class RunPlane:
    """Builds the control plane of a run, once."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        buffer: "Remote[BufferActor]",
        engines: "TypedCluster[EngineWorker]",
    ) -> None:
        self._settings = settings
        self._buffer = buffer
        self._workers = engines.workers
        self._tasks: list[asyncio.Task[None]] = []
        self.events = EventSender(buffer)
        self.handles = {worker.name: worker for worker in engines.workers}
        """All engine workers by name, including those that replaced others."""

    def begin(self, recovered: RecoveredRun) -> ControlPlane:
        """Start at the state that was recovered from the tables; all engines serve its version."""
        state = PlaneState(recovered.version, recovered.control, recovered.untrained)
        return self._begin(state, _engine_workers(self._workers, recovered.version))

    async def succeed(self) -> tuple[RecoveredRun, ControlPlane]:
        """Continue in place of a process that died, while all others go on."""
        recovered, cursor = await self._buffer.call.succeed.aio("coordinator")
        version = recovered.version
        engines = await self._engines_now(version)
        readable = version
        if Phase.UPDATE in self._settings.schedule.before_training:
            # Versions are published one at a time, so the one before the newest is readable.
            readable = max(recovered.start, version - 1)
        state = PlaneState(
            version, recovered.control, recovered.untrained, recovered.crashes, cursor, readable
        )
        return recovered, self._begin(state, engines)

    async def _engines_now(self, version: int) -> EngineWorkers:
        """Return the engine workers that have not died, with the state that they are in.

        If all have died, this process ends for good, so that all processes of the run restart.
        """
        states = await asyncio.gather(*map(self._state_of, self._workers))
        serving = [state for state in states if state]
        alive = [w for w, state in zip(self._workers, states, strict=True) if state is not None]
        if not alive:
            end_actor()
        served = max((served for served, _ in serving), default=version)
        suspended = any(suspended for _, suspended in serving)
        return replace(_engine_workers(alive, served), suspended=suspended)

    async def _state_of(
        self, worker: "WorkerHandle[EngineWorker]"
    ) -> tuple[int, bool] | tuple[()] | None:
        """Return a worker's version and suspension, () if it does not serve, None if it died."""
        try:
            async with timeout(self._settings.health.answer_s):
                return await worker.call.state.start() or ()
        except deaths():
            return None
        except TimeoutError:
            return ()

    def _begin(self, state: PlaneState, engines: EngineWorkers) -> ControlPlane:
        settings = self._settings
        report_waits(settings.run, "coordinator")
        plane = ControlPlane(
            PlaneSettings(
                settings.schedule,
                settings.rollout,
                settings.steps,
                settings.curriculum,
                settings.task_seed,
            ),
            engines,
            self._tasks_from,
            self._buffer.port,
            self.events.emit,
            state,
        )
        fail = plane.scheduler.fail
        self._arrived = plane.scheduler.tasks_arrived
        self._following = begin(plane.follow(), "the buffer cannot be followed", fail)
        watch = plane.watch(settings.health)
        self._tasks = [begin(watch, "engine workers cannot be watched", fail)]
        if settings.spawning is not None:
            rebinding = self._rebind(plane, settings.spawning)
            self._tasks.append(begin(rebinding, "engine workers cannot be moved", fail))
        self._watchdog = Watchdog(self.events.emit, STALL_S)
        return plane

    def _tasks_from(self, cursor: int) -> Iterator[tuple[Task, int] | None]:
        """Return tasks with their cursors, from a cursor on; None stands for a task to come."""
        settings = self._settings
        stream = task_stream(
            settings.sources,
            seed=settings.task_seed,
            weights=settings.task_weights,
            domains=[domain.name for domain in settings.domains],
        )
        gate = TaskGate(
            settings.domains,
            settings.admitted,
            partial(run_admissions, settings.run),
            from_thread(asyncio.get_running_loop(), self.events.emit),
        )
        self._feed = TaskFeed(stream, cursor, lambda: self._arrived(), gate)
        return self._feed

    async def _rebind(self, plane: ControlPlane, spawning: Spawning) -> None:
        engines, emit = plane.engines, self.events.emit
        await Rebinding(self.handles, engines, spawning, emit, self._bound).run()

    def _bound(self, bindings: pa.Table) -> None:
        self._buffer.call.commit.start({"bindings": to_ipc(bindings)})

    def stop(self) -> None:
        """Stop to draw tasks, and to watch and to move the engine workers."""
        self._feed.close()
        for task in self._tasks:
            task.cancel()


def _engine_workers(workers: "Sequence[WorkerHandle[EngineWorker]]", version: int) -> EngineWorkers:
    return EngineWorkers(
        [RemoteCommands(worker) for worker in workers],
        version,
        sliding=[worker.name for worker in workers if worker.placement.shares],
        prefill=[w.name for w in workers if w.placement.role == EnginePhase.PREFILL],
    )

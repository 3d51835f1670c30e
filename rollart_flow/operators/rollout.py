"""The rollout operator: runs many attempts in one process, scores them and hands them on.

The process drives environments and holds no model; it requests tokens directly from the engine
workers. Blocks of attempts arrive, but each attempt goes its own way: as soon as it ends, it is
scored and leaves for the buffer, whatever the other attempts of its block do. An attempt that the
scheduler cancels ends at its current state. An attempt whose process died runs again under the same
id.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import pyarrow as pa

from rollart_flow.control.environment import AsyncEnvironment
from rollart_flow.control.inference.worker_pool import Recover
from rollart_flow.control.plane import InferenceClients, RolloutPlane
from rollart_flow.control.protocols import Admission
from rollart_flow.control.rollout.dispatch import FifoSemaphore
from rollart_flow.control.rollout.env_manager import EnvManager
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.remote import RemoteInference
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.models.version_zero import load_codec, vocabulary_of
from rollart_flow.operators.admission import AdmissionClient
from rollart_flow.operators.remote import EventSender, RemoteRecovery
from rollart_flow.operators.reward import RewardSettings, RewardStage
from rollart_flow.operators.sink import BufferSink
from rollart_flow.operators.sources import read_assignments
from rollart_flow.resources import Remote, TypedCluster
from rollart_flow.resources.blocking import report_waits
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.nodes import node_id
from rollart_flow.store.cache import local_file
from rollart_flow.store.images import ImageFolder
from rollart_flow.types import Assignment, AttemptLimits, Trajectory
from rollart_flow.weights.folder_store import local_path

if TYPE_CHECKING:
    from rollart_flow.engines.worker import EngineWorker
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.buffer_writer import BufferWriterActor
    from rollart_flow.operators.coordinator import CoordinatorActor


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """Handles and limits of a process that drives environments."""

    run: str
    """Address of the run."""
    domains: Mapping[str, Domain]
    limits: Mapping[str, AttemptLimits]
    """Limits of an attempt, by domain."""
    policy_folder: str
    engines: TypedCluster["EngineWorker"]
    hw_affinity: Mapping[str, str] | Literal["auto"]
    """Resource class by domain, or "auto" if a profiler in each process determines it."""
    buffer: Remote["BufferActor"]
    """Handle of the buffer actor, which receives events."""
    writers: tuple[Remote["BufferWriterActor"], ...]
    """Handles of the buffer's writers, which receive trajectories; empty if the buffer does."""
    coordinator: Remote["CoordinatorActor"] | None = None
    """Handle of the coordinator; None for evaluation, which needs no permission."""
    schedule: Schedule | None = None
    """Schedule by which attempts wait for one another; None for evaluation, where none waits."""
    warm_processes: int = 8
    """Number of idle environment processes to keep for each class of domain."""
    isolated: bool = True
    """Whether environments that are not inline run in processes, rather than in threads."""
    source: str | None = None
    """Address of the pipeline file, for domains that cannot be imported by name."""


class Driver:
    """Driver that runs attempts in the current event loop.

    Args:
        context: handles and limits.
        recover: function that brings back lost engine workers; by default the coordinator does.
    """

    def __init__(self, context: RolloutContext, recover: Recover | None = None) -> None:
        self._context = context
        report_waits(context.run, "rollout" if context.coordinator else "evaluation")
        self.events = EventSender(context.buffer)
        host = f"{node_id()[:8]}-{uuid4().hex[:8]}"
        self._source = None if context.source is None else local_file(context.source)
        ahead = [w for w in context.engines.workers if w.placement.role == EnginePhase.PREFILL]
        workers = [w for w in context.engines.workers if w.placement.role != EnginePhase.PREFILL]
        admission: Admission | None = None
        if context.coordinator is not None:
            admission = AdmissionClient(context.coordinator, host)
            recover = recover or RemoteRecovery(context.coordinator.port, host)
        loop = asyncio.get_running_loop()
        loop_started = datetime.now(UTC) - timedelta(seconds=loop.time())
        policy_folder = local_path(context.policy_folder)
        self._plane = RolloutPlane(
            host,
            InferenceClients(
                [RemoteInference(worker, host) for worker in workers],
                prefill=[RemoteInference(worker, host) for worker in ahead],
                hw_affinity=context.hw_affinity,
                recover=recover,
                vocabulary=vocabulary_of(policy_folder),
            ),
            load_codec(policy_folder),
            lambda seconds: loop_started + timedelta(seconds=seconds),
            self.events.emit,
            admission=admission,
            schedule=context.schedule,
        )
        self._processes = WarmProcesses(context.warm_processes)
        self._images = ImageFolder(context.run)

    def manager(self, assignment: Assignment) -> EnvManager:
        """Return the manager of one attempt, for `run`."""
        context, name = self._context, assignment.task.domain
        domain, limits = context.domains[name], context.limits[name]

        def make() -> AsyncEnvironment:
            return open_environment(
                domain,
                timeout_s=limits.step_timeout_s,
                source=self._source,
                processes=self._processes,
                isolated=context.isolated,
            )

        return self._plane.manager(assignment, make, limits, domain.environment.version)

    async def run(self, manager: EnvManager) -> tuple[Trajectory, ...]:
        """Run one attempt to its end and return its unscored branches; their images are durable."""
        branches = await self._plane.run(manager)
        images = [image for branch in branches for image in branch.images or ()]
        if images:
            await asyncio.to_thread(self._images.put, images)
        return branches

    async def close(self) -> None:
        """Stop to listen for cancellations, and end idle processes of environments."""
        await self._plane.close()
        await self._processes.close()


class RolloutOperator:
    """Operator from blocks of attempts to blocks of their trajectories' ids and outcomes.

    A block is done once each of its trajectories is scored, if possible, and durable.

    Args:
        context: handles and limits of the process.
        reward: settings of the reward.
        max_concurrent: maximum number of attempts that run at a time; None for no limit.
    """

    def __init__(
        self, context: RolloutContext, reward: RewardSettings, max_concurrent: int | None = None
    ) -> None:
        self._context = context
        self._reward = RewardStage(reward)
        self._sink = BufferSink(context.buffer, context.writers)
        self._driver: Driver | None = None
        self._places = None
        if max_concurrent is not None:
            self._places = FifoSemaphore("attempt", max_concurrent)
        self._running = 0

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Run the attempts of a block concurrently, each to its commit."""
        if self._driver is None:
            self._driver = Driver(self._context)
            freeze_heap()
        attempts = [self._attempt(self._driver, each) for each in read_assignments(block)]
        trajectories = [each for branches in await asyncio.gather(*attempts) for each in branches]
        return pa.table(
            {
                "trajectory_id": [each.trajectory_id for each in trajectories],
                "outcome": [each.outcome for each in trajectories],
            }
        )

    async def _attempt(self, driver: Driver, assignment: Assignment) -> tuple[Trajectory, ...]:
        if self._places is not None:
            await self._places.take(assignment.trajectory_id)
        self._running += 1
        try:
            branches = await self._reward(await driver.run(driver.manager(assignment)))
        finally:
            self._running -= 1
            if self._places is not None:
                self._places.give_back()
        durable = self._sink.put(branches)
        if not self._running:  # unless an attempt that waits for a place starts now
            asyncio.get_running_loop().call_soon(self._flush_if_idle)
        await asyncio.shield(durable)
        return branches

    async def close(self) -> None:
        """Release what attempts and rewards have kept for the next ones; no block follows."""
        if self._driver is not None:
            await self._driver.close()
        await self._reward.close()

    def _flush_if_idle(self) -> None:
        if not self._running:
            self._sink.flush()

"""The rollout operator: runs many attempts in one process and emits each one as soon as it ends.

The process drives environments and holds no model; it requests tokens directly from the engine
workers. An attempt that the scheduler cancels ends at its current state. An attempt whose process
died runs again under the same id.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import pyarrow as pa
import ray

from rollart_flow.control.inference.worker_pool import Recover
from rollart_flow.control.plane import InferenceClients, RolloutPlane
from rollart_flow.control.protocols import Admission, AsyncEnvironment
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.remote import RemoteInference
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.models.policy import load_codec
from rollart_flow.operators.remote import RemoteRecovery
from rollart_flow.operators.sources import read_assignment
from rollart_flow.resources import Remote, TypedCluster
from rollart_flow.rows import trajectories_table
from rollart_flow.store.cache import local_file
from rollart_flow.types import Assignment, AttemptLimits, Event, Trajectory
from rollart_flow.weights.folder_store import local_path

if TYPE_CHECKING:
    from rollart_flow.engines.worker import EngineWorker
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.coordinator import CoordinatorActor


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """Handles and limits of a process that drives environments."""

    domains: Mapping[str, Domain]
    limits: Mapping[str, AttemptLimits]
    """Limits of an attempt, by domain."""
    policy_folder: str
    engines: TypedCluster["EngineWorker"]
    hw_affinity: Mapping[str, str] | Literal["auto"]
    """Resource class by domain, or "auto" if a profiler in each process determines it."""
    buffer: Remote["BufferActor"]
    """Handle of the buffer actor, which receives events."""
    coordinator: Remote["CoordinatorActor"] | None = None
    """Handle of the coordinator; None for evaluation, which needs no permission."""
    schedule: Schedule | None = None
    """Schedule by which attempts wait for one another; None for evaluation, where none waits."""
    warm_processes: int = 8
    """Number of idle environment processes to keep for each class of domain."""
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
        host = f"{ray.get_runtime_context().get_node_id()[:8]}-{uuid4().hex[:8]}"
        self._source = None if context.source is None else local_file(context.source)
        ahead = [w for w in context.engines.workers if w.placement.role == EnginePhase.PREFILL]
        workers = [w for w in context.engines.workers if w.placement.role != EnginePhase.PREFILL]
        admission: Admission | None = None
        if context.coordinator is not None:
            admission = context.coordinator.port
            recover = recover or RemoteRecovery(context.coordinator.port, host)
        loop = asyncio.get_running_loop()
        loop_started = datetime.now(UTC) - timedelta(seconds=loop.time())
        self._plane = RolloutPlane(
            host,
            InferenceClients(
                [RemoteInference(worker, host) for worker in workers],
                prefill=[RemoteInference(worker, host) for worker in ahead],
                hw_affinity=context.hw_affinity,
                recover=recover,
            ),
            load_codec(local_path(context.policy_folder)),
            lambda seconds: loop_started + timedelta(seconds=seconds),
            self.emit,
            admission=admission,
            schedule=context.schedule,
        )
        self._processes = WarmProcesses(context.warm_processes)

    def emit(self, event: Event) -> None:
        """Send an event to the buffer, which commits it."""
        self._context.buffer.call.report.start([(datetime.now(UTC), event)])

    async def run(self, assignment: Assignment) -> Trajectory:
        """Run one attempt to its end and return its unscored trajectory."""
        context, name = self._context, assignment.task.domain
        domain, limits = context.domains[name], context.limits[name]

        def make() -> AsyncEnvironment:
            return open_environment(
                domain,
                timeout_s=limits.step_timeout_s,
                source=self._source,
                processes=self._processes,
            )

        return await self._plane.run(assignment, make, limits, domain.environment.version)

    async def run_all(self, assignments: Sequence[Assignment]) -> list[Trajectory]:
        """Run attempts concurrently and return their trajectories in the same order."""
        return list(await asyncio.gather(*(self.run(each) for each in assignments)))


class RolloutOperator:
    """Operator from one-row blocks of assignments to one-row blocks of unscored trajectories."""

    def __init__(self, context: RolloutContext) -> None:
        self._context = context
        self._driver: Driver | None = None

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Run the block's attempt to its end and return its trajectory."""
        if self._driver is None:
            self._driver = Driver(self._context)
        return trajectories_table([await self._driver.run(read_assignment(block))])

"""The rollout operator: runs many attempts in one process, scores them and hands them on.

The process drives environments and holds no model; it requests tokens directly from the engine
workers. Blocks of attempts arrive, but each attempt goes its own way: as soon as it ends, it is
scored and leaves for the buffer, whatever the other attempts of its block do. An attempt that the
scheduler cancels ends at its current state. An attempt whose process died runs again under the same
id.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

import pyarrow as pa

from rollart_flow.control.environment import AsyncEnvironment, ChatCodec
from rollart_flow.control.inference.worker_pool import Recover
from rollart_flow.control.plane import InferenceClients, RolloutPlane
from rollart_flow.control.protocols import Admission
from rollart_flow.control.rollout.attempt_manager import AttemptManager
from rollart_flow.control.rollout.dispatch import FifoSemaphore
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.remote import RemoteInference
from rollart_flow.envs.adapter import open_environment
from rollart_flow.envs.base import Domain
from rollart_flow.envs.process import WarmProcesses
from rollart_flow.harness.harness import Harness
from rollart_flow.models.version_zero import load_codec, vocabulary_of
from rollart_flow.operators.admission import AdmissionClient
from rollart_flow.operators.remote import EventSender, RemoteRecovery
from rollart_flow.operators.reward import RewardSettings, RewardStage
from rollart_flow.operators.sandbox_client import AttemptBoxes, SandboxClient
from rollart_flow.operators.sink import BufferSink
from rollart_flow.operators.sources import read_assignments
from rollart_flow.resources import Remote, TypedCluster
from rollart_flow.resources.blocking import report_waits
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.nodes import node_id
from rollart_flow.store.cache import local_file
from rollart_flow.store.images import ImageFolder
from rollart_flow.text import NewTexts
from rollart_flow.types import Assignment, AttemptLimits, Outcome, Trajectory
from rollart_flow.weights.folder_store import local_path

if TYPE_CHECKING:
    from rollart_flow.engines.worker import EngineWorker
    from rollart_flow.operators.agents import Agents
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.operators.buffer_writer import BufferWriterActor
    from rollart_flow.operators.coordinator import CoordinatorActor
    from rollart_flow.operators.sandboxes import SandboxWorker

_log = logging.getLogger(__name__)
_ERRORS = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})
"""Outcomes with an error that a user wants to hear of while the run goes on."""


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """Handles and limits of a process that drives environments."""

    run: str
    """Address of the run."""
    domains: Mapping[str, Domain]
    limits: Mapping[str, AttemptLimits]
    """Limits of an attempt, by domain."""
    agents: Mapping[str, Harness]
    """Program that works at the tasks, by domain; the environments do in all others."""
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
    sandboxes: TypedCluster["SandboxWorker"] | None = None
    """Pools of boxes; None: each environment makes its own."""
    sandbox: str = ""
    """Kind of the boxes of programs; empty: what `ROLLART_SANDBOX` says."""


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
        codec = load_codec(policy_folder)
        self._plane = RolloutPlane(
            host,
            InferenceClients(
                [RemoteInference(worker, host) for worker in workers],
                prefill=[RemoteInference(worker, host) for worker in ahead],
                hw_affinity=context.hw_affinity,
                recover=recover,
                vocabulary=vocabulary_of(policy_folder),
            ),
            codec,
            lambda seconds: loop_started + timedelta(seconds=seconds),
            self.events.emit,
            admission=admission,
            schedule=context.schedule,
        )
        self._processes = WarmProcesses(context.warm_processes)
        self._images = ImageFolder(context.run)
        self._sandboxes = self._sandbox_client(host)
        self._agents = self._programs(codec)
        self._ready: asyncio.Task[None] | None = None

    def _sandbox_client(self, host: str) -> SandboxClient | None:
        context = self._context
        if context.sandboxes is None:
            return None
        domains, limits = context.domains, context.limits
        return SandboxClient(context.sandboxes, host, domains, limits, context.coordinator)

    def _programs(self, codec: ChatCodec) -> "Agents | None":
        """Return the agents that are programs; only they need the gateway and its packages."""
        context = self._context
        if not context.agents:
            return None
        from rollart_flow.operators.agents import Agents

        domains, limits = context.domains, context.limits
        parts = (self._plane, codec, self._processes, self._source)
        return Agents(context.agents, domains, limits, *parts, sandbox=context.sandbox)

    async def ready(self) -> None:
        """Return once managers can be run; may be called many times."""
        if self._agents is None:
            return
        if self._ready is None:
            self._ready = asyncio.create_task(self._agents.start())
        await asyncio.shield(self._ready)

    def expect(self, assignment: Assignment) -> AttemptBoxes | None:
        """Have the first box of an attempt made, which may start later; the caller releases it."""
        if self._sandboxes is None or assignment.task.domain in self._context.agents:
            return None
        return self._sandboxes.expect(assignment)

    def manager(self, assignment: Assignment) -> AttemptManager:
        """Return the manager of one attempt, for `run`."""
        context, name = self._context, assignment.task.domain
        if self._agents is not None and name in context.agents:
            return self._agents.manager(assignment)
        domain, limits = context.domains[name], context.limits[name]

        def make() -> AsyncEnvironment:
            sandboxes = None if domain.environment.inline else self._sandboxes
            return open_environment(
                domain,
                timeout_s=limits.step_timeout_s,
                source=self._source,
                processes=self._processes,
                isolated=context.isolated,
                boxes=None if sandboxes is None else sandboxes.attempt(assignment),
            )

        return self._plane.manager(assignment, make, limits, domain.version)

    async def run(self, manager: AttemptManager) -> tuple[Trajectory, ...]:
        """Run one attempt to its end and return its unscored branches; their images are durable."""
        branches = await self._plane.run(manager)
        images = [image for branch in branches for image in branch.images or ()]
        if images:
            await asyncio.to_thread(self._images.put, images)
        return branches

    async def close(self) -> None:
        """Stop to listen for orders, and end idle processes of environments."""
        await self._plane.close()
        if self._agents is not None:
            await self._agents.close()
        await self._processes.close()
        if self._sandboxes is not None:
            await self._sandboxes.close()


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
        self._new = NewTexts()

    async def __call__(self, block: pa.Table) -> pa.Table:
        """Run the attempts of a block concurrently, each to its commit."""
        if self._driver is None:
            self._driver = Driver(self._context)
            freeze_heap()
        await self._driver.ready()
        attempts = [self._attempt(self._driver, each) for each in read_assignments(block)]
        trajectories = [each for branches in await asyncio.gather(*attempts) for each in branches]
        return pa.table(
            {
                "trajectory_id": [each.trajectory_id for each in trajectories],
                "outcome": [each.outcome for each in trajectories],
            }
        )

    async def _attempt(self, driver: Driver, assignment: Assignment) -> tuple[Trajectory, ...]:
        boxes = driver.expect(assignment)
        try:
            return await self._run(driver, assignment)
        finally:
            if boxes is not None:
                boxes.release()

    async def _run(self, driver: Driver, assignment: Assignment) -> tuple[Trajectory, ...]:
        if self._places is not None:
            await self._places.take(assignment.trajectory_id)
        self._running += 1
        try:
            branches = await self._reward(await driver.run(driver.manager(assignment)))
        finally:
            self._running -= 1
            if self._places is not None:
                self._places.give_back()
        self._note(branches[0])
        durable = self._sink.put(branches)
        if not self._running:  # unless an attempt that waits for a place starts now
            asyncio.get_running_loop().call_soon(self._flush_if_idle)
        await durable
        return branches

    def _note(self, attempt: Trajectory) -> None:
        """Log an error of an attempt, the first time that there is one like it."""
        if attempt.error is not None and attempt.outcome in _ERRORS:
            said = f"{attempt.domain}: {attempt.outcome}, {attempt.error}"
            if self._new(said):
                _log.error("%s", said)

    async def close(self) -> None:
        """Release what attempts and rewards have kept for the next ones; no block follows."""
        if self._driver is not None:
            await self._driver.close()
        await self._reward.close()

    def _flush_if_idle(self) -> None:
        if not self._running:
            self._sink.flush()

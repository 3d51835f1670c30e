"""The processes of a run: buffer, coordinator, engine, trainer, and evaluation workers.

All processes start together, since each takes seconds to import its packages, and they receive the
run's state as recovered from the tables. The placement is committed to `bindings`.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from rollart_flow.engines.worker import EngineWorker
from rollart_flow.operators.buffer import BufferActor
from rollart_flow.operators.buffer_writer import BufferWriterActor
from rollart_flow.operators.coordinator import CoordinatorActor
from rollart_flow.operators.offline import OfflineCoordinator
from rollart_flow.operators.recovery import RecoveredRun
from rollart_flow.operators.sandboxes import SandboxWorker
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import Placement, Remote, TypedCluster
from rollart_flow.resources.blocking import report_for
from rollart_flow.resources.local import wait
from rollart_flow.resources.manager import free_gangs
from rollart_flow.runner.bindings import record_bindings
from rollart_flow.runner.executors import Executor
from rollart_flow.runner.placement import Placed, place_workers
from rollart_flow.runner.rollout_workers import rollout_bindings, rollout_nodes
from rollart_flow.runner.sandboxes import end_sandboxes, start_sandboxes
from rollart_flow.runner.settings import (
    buffer_settings,
    coordinator_settings,
    evaluation_arguments,
    offline_settings,
    rollout_arguments,
)
from rollart_flow.runner.trainers import gather_trainers, in_turns, start_trainers
from rollart_flow.store import read_info
from rollart_flow.store.layout import checkpoints_uri, weights_uri
from rollart_flow.store.lease_file import Tenure
from rollart_flow.trainers.checkpoint.retention import remove_checkpoints_after
from rollart_flow.trainers.worker import TrainWorker
from rollart_flow.types import Event, EventKind, Reason
from rollart_flow.weights.registry import start_weight_servers, transport_of
from rollart_flow.weights.terms import FIRST, FolderTerm
from rollart_flow.weights.transport import WeightServers

_Engines = TypedCluster[EngineWorker]


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """Handles of all processes of a run, with the recovered state of the run."""

    executor: Executor
    buffer: Remote[BufferActor]
    writers: tuple[Remote[BufferWriterActor], ...]
    """Writers of the buffer, if it has any."""
    coordinator: Remote[CoordinatorActor] | Remote[OfflineCoordinator]
    engines: TypedCluster[EngineWorker]
    trainers: TypedCluster[TrainWorker]
    evaluators: TypedCluster[EngineWorker] | None
    sandboxes: TypedCluster[SandboxWorker] | None
    """Pools of boxes; None if no domain opens boxes."""
    rollout: tuple[Placement, ...]
    """Places of the workers that drive environments; empty if they may be on any node."""
    recovered: RecoveredRun
    affinity: dict[str, str] | Literal["auto"]
    """Resource class by domain, or "auto" if profilers determine it."""
    fallbacks: tuple[tuple[str, str], ...]
    """Pairs of an unavailable requested resource class and the class granted in its place."""
    checkpoints: str
    """Address of the folder of checkpoints."""
    weight_servers: WeightServers | None
    """Weight servers of this run, or None if its weight store needs none."""
    term: int
    """Term of the driver."""
    resumed: bool
    """Whether another driver may have driven the run before."""

    def begin(self) -> None:
        """Let the engines serve the run's current version, and the coordinator drive the run.

        The trainers must hold that version.
        """
        version = self.recovered.version
        self.publish_recovered()
        if in_turns(self.trainers):
            self.trainers.call.offload()
        self.engines.call.serve(version)
        self.coordinator.call.start(self.recovered)

    def publish_recovered(self) -> None:
        """Have the trainers publish the version that they hold, unless it is readable.

        Later versions and checkpoints, which no row of `steps` names, are removed.
        """
        version, term = self.recovered.version, self.folder_term
        self.trainers.call.continue_from(version, term)
        remove_checkpoints_after(self.checkpoints, version, term)
        if term != FIRST:
            self.trainers.call.publish_missing()

    @property
    def rollout_nodes(self) -> frozenset[str]:
        """Nodes of the workers that drive environments; empty if they may be on any node."""
        return rollout_nodes(self.rollout)

    @property
    def folder_term(self) -> FolderTerm:
        """Part of the names of versions and checkpoints that only these processes use; empty in the
        processes that begin a run."""
        begin = not self.resumed and self.recovered.version == self.recovered.start
        return FIRST if begin else FolderTerm(self.term, self.recovered.version)

    def dead(self) -> tuple[str, ...]:
        """Return the names of dead processes among those that Ray does not restart.

        A hanging rank of the trainer counts as dead once another rank has lost it.
        """
        actors: dict[str, Remote[Any]] = {"buffer": self.buffer, "coordinator": self.coordinator}
        actors |= {f"buffer-writer-{number}": each for number, each in enumerate(self.writers)}
        died = self.executor.gone(actors, self.trainers.workers)
        servers = self.weight_servers
        return died if servers is None or not servers.lost else (*died, servers.name)

    def report_restarted(self, died: Sequence[str]) -> None:
        """Record that processes died and that the run continues without their state."""
        now = datetime.now(UTC)
        detail = {"restarted": True}
        crashes = [
            (now, Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))
            for name in died
        ]
        self.buffer.call.report.start(crashes)

    def end_sandboxes(self, limit_s: float) -> None:
        """End all boxes and commit their rows, as far as the pools answer in time."""
        if self.sandboxes is not None:
            end_sandboxes(self.sandboxes, limit_s)

    def shutdown(self) -> None:
        """End every process; all data of the run is already committed."""
        for cluster in (self.sandboxes, self.engines, self.trainers, self.evaluators):
            if cluster is not None:
                cluster.shutdown()
        free_gangs(self.rollout)
        self.coordinator.kill()
        self.buffer.kill()
        for writer in self.writers:
            writer.kill()
        if self.weight_servers is not None:
            self.weight_servers.close()


def start_processes(
    executor: Executor, pipeline: Pipeline, uri: str, tenure: Tenure | None = None
) -> RunProcesses:
    """Start every process of a run and wait until all are ready to `RunProcesses.begin`.

    Args:
        executor: executor in its context.
        pipeline: pipeline with its overrides applied.
        uri: address of the run, whose folder is complete.
        tenure: the right of this process to drive the run, for the run's writer.

    Raises:
        StoreError: the run cannot be written.
        RunFailedError: a worker cannot start.
        WeightsError: weights cannot be carried as the pipeline says.
    """
    with ExitStack() as started:
        weights, servers = _start_servers(pipeline, uri, started)
        buffer, writers = _start_buffer(executor, pipeline, uri, tenure, started)
        recovering = buffer.call.start.start()
        placed = place_workers(pipeline, executor.resources())
        started.callback(free_gangs, placed.rollout)
        trainers, engines, evaluators = _start_clusters(
            executor, pipeline, uri, weights, placed, started
        )
        sandboxes = start_sandboxes(executor, pipeline, uri, buffer, placed.sandboxes)
        if sandboxes is not None:
            started.callback(sandboxes.shutdown)
        coordinator = _start_coordinator(executor, pipeline, uri, weights, buffer, engines)
        started.callback(coordinator.kill)
        recovered = wait(recovering, "BufferActor.start")
        if not in_turns(trainers):
            gather_trainers(trainers, uri)
        fallbacks = record_bindings(
            buffer,
            [engines, trainers, evaluators, sandboxes],
            rollout_bindings(placed.rollout),
        )
        if in_turns(trainers):  # a resumed trainer may recompute steps before the engines serve
            engines.call.release()
        started.pop_all()
    return RunProcesses(
        executor=executor,
        buffer=buffer,
        writers=writers,
        coordinator=coordinator,
        engines=engines,
        trainers=trainers,
        evaluators=evaluators,
        sandboxes=sandboxes,
        rollout=tuple(placed.rollout),
        recovered=recovered,
        affinity=_affinity(pipeline, engines),
        fallbacks=tuple((event.subject, str(event.detail["granted"])) for event in fallbacks),
        checkpoints=checkpoints_uri(uri),
        weight_servers=servers,
        term=1 if tenure is None else tenure.term,
        resumed=bool(read_info(uri).resumed),
    )


def _start_coordinator(
    executor: Executor,
    pipeline: Pipeline,
    uri: str,
    weights: str,
    buffer: Remote[BufferActor],
    engines: _Engines,
) -> Remote[CoordinatorActor] | Remote[OfflineCoordinator]:
    """Start the coordinator, which for an offline run is one without a control plane."""
    if pipeline.offline:
        return executor.start(OfflineCoordinator)(offline_settings(pipeline, uri), buffer)
    control = coordinator_settings(pipeline, uri, weights, nodes_may_join=executor.nodes_may_join)
    return executor.start(CoordinatorActor)(control, buffer, engines)


def _start_buffer(
    executor: Executor, pipeline: Pipeline, uri: str, tenure: Tenure | None, started: ExitStack
) -> tuple[Remote[BufferActor], tuple[Remote[BufferWriterActor], ...]]:
    """Start the buffer and its writers; return both."""
    settings = buffer_settings(pipeline)
    start_writer = executor.start(BufferWriterActor)
    count = 0 if pipeline.offline else pipeline.buffer.writers
    writers = tuple(start_writer(uri, number, settings.columns) for number in range(count))
    buffer = executor.start(BufferActor)(uri, settings, tenure, writers)
    started.callback(buffer.kill)
    for writer in writers:
        started.callback(writer.kill)
    return buffer, writers


def _start_servers(
    pipeline: Pipeline, uri: str, started: ExitStack
) -> tuple[str, WeightServers | None]:
    """Start the servers of the weight store, if it needs any; return the store's name too."""
    train = pipeline.train
    servers = start_weight_servers(train.weight_store, weights_uri(uri), train.keep_versions)
    if servers is None:
        return train.weight_store, None
    started.callback(servers.close)
    report_for("weight-servers", lambda: servers.pids)
    return servers.weights, servers


def _start_clusters(
    executor: Executor,
    pipeline: Pipeline,
    uri: str,
    weights: str,
    placed: Placed,
    started: ExitStack,
) -> tuple[TypedCluster[TrainWorker], _Engines, _Engines | None]:
    """Start the workers; return the trainers, engines, and evaluators, if any."""
    classes = ({p.granted for p in of} for of in (placed.training, placed.engines))
    transport_of(pipeline.train.weights).check_placed(*classes)
    trainers = start_trainers(executor, pipeline, uri, weights, placed.training)
    started.callback(trainers.shutdown)
    if in_turns(trainers):  # engines measure the free memory of their devices when they start
        gather_trainers(trainers, uri)
        trainers.call.offload()
    arguments = {} if pipeline.offline else rollout_arguments(pipeline, uri, weights)
    engines = executor.cluster(placed.engines, EngineWorker, arguments)
    started.callback(engines.shutdown)
    if not placed.evaluation:
        return trainers, engines, None
    arguments = evaluation_arguments(pipeline, uri, weights)
    evaluators = executor.cluster(placed.evaluation, EngineWorker, arguments)
    started.callback(evaluators.shutdown)
    return trainers, engines, evaluators


def _affinity(pipeline: Pipeline, engines: _Engines) -> dict[str, str] | Literal["auto"]:
    """Return the requested resource class by domain, or "auto"."""
    if pipeline.offline:
        return {}
    if isinstance(pipeline.rollout.hw_affinity, str):
        return pipeline.rollout.hw_affinity
    return {
        request.domain: request.resource
        for worker in engines.workers
        if not worker.placement.shares and worker.placement.role == EngineWorker.role
        for request in worker.placement.requests
    }

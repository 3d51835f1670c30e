"""The streams of a run: producer, consumer and evaluation.

    producer:    tasks -> rollout (each attempt -> reward -> buffer)
    consumer:    batches -> train
    evaluation:  versions -> evaluate

The streams interact only through the buffer and the coordinator. Each stream ends when its source
ends, and the coordinator decides when that is, so that a run stops without interrupting a stream.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

from rollart_flow.control.inference.health import HealthLimits
from rollart_flow.control.schedule.declarations import Phase
from rollart_flow.engines.worker import EngineWorker
from rollart_flow.operators.batch_rows import BatchRows
from rollart_flow.operators.coordinator import CoordinatorActor
from rollart_flow.operators.evaluate import EvaluateContext, EvaluateOperator
from rollart_flow.operators.offline import OfflineCoordinator, StoredBatches
from rollart_flow.operators.recovery import evaluated_versions
from rollart_flow.operators.reward import RewardSettings
from rollart_flow.operators.rollout import RolloutContext, RolloutOperator
from rollart_flow.operators.sources import Admitted, Batches, NextBlock, ReportedSource, Versions
from rollart_flow.operators.stored_rows import StoredSource
from rollart_flow.operators.train import TrainContext, TrainOperator
from rollart_flow.operators.trained import Trained, read_trained
from rollart_flow.pipeline import GeneratingNode, Pipeline
from rollart_flow.pipeline.scoring import MAX_CONCURRENT
from rollart_flow.resources import Remote, TypedCluster
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.composition import single_functions
from rollart_flow.rows import from_ipc
from rollart_flow.runner.executors.base import OperatorStage, StreamSource
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.runner.settings import attempts_ahead, named_filters, sampling_of, stored_sources
from rollart_flow.serverless import ServerlessReward
from rollart_flow.store import Run
from rollart_flow.store.away import repeated_query
from rollart_flow.store.layout import checkpoints_uri, policy_uri
from rollart_flow.store.pins import recorded_pins

_BLOCK = 256
"""Maximum number of attempts of a block; a block costs some milliseconds, whatever it holds."""
_FEWEST_BLOCKS = 64
"""Number of blocks whose threads cost too little to save any."""


def blocks_in_flight(groups: int, attempts: int) -> int:
    """Return how many blocks of attempts may be in flight at a time.

    Ray has a thread for each of them, which keeps 150 KB once it has been used. The attempts of a
    group are admitted together, so that there are about as many blocks as groups; as many again are
    left to attempts that are made once more.

    Args:
        groups: maximum number of groups in flight.
        attempts: maximum number of attempts in flight.
    """
    return min(attempts, max(_FEWEST_BLOCKS, 2 * groups))


class Dataflow:
    """Builder of the streams of one run."""

    def __init__(
        self, pipeline: Pipeline, uri: str, processes: RunProcesses, source: str | None
    ) -> None:
        self._pipeline = pipeline
        self._uri = uri
        self._processes = processes
        self._source = source

    def producer(self) -> Iterator[int]:
        """Run attempts until the coordinator admits none; yield counts of committed attempts."""
        coordinator = self._admitting

        def part(number: int, limit: int) -> NextBlock:
            name = f"tasks-{number}"
            size = self._block_size()
            admitted = Admitted(coordinator, name, limit, size, Path(notes, name))
            return ReportedSource(self._uri, admitted)

        def abandon() -> None:
            # If the coordinator has died, the stream ends by itself: its source calls it.
            coordinator.call.keep_stopped.start()

        rollout = self._pipeline.rollout
        stage = OperatorStage(
            RolloutOperator,
            (self._rollout_context(), self._reward(rollout.workers), rollout.max_concurrent),
            workers=rollout.workers,
            in_flight=blocks_in_flight(self._groups_in_flight(), self._attempts_in_flight()),
            nodes=self._processes.rollout_nodes,
        )
        source = StreamSource(part, lambda: coordinator.call.admits(), abandon)
        with TemporaryDirectory(prefix="rollart-") as notes:
            yield from self._processes.executor.produce("tasks", source, stage)

    def _block_size(self) -> int:
        """Return the maximum number of attempts of a block, with which all workers get blocks."""
        return max(
            1, min(_BLOCK, self._attempts_in_flight() // (2 * self._pipeline.rollout.workers))
        )

    def _attempts_in_flight(self) -> int:
        """Return the maximum number of concurrent attempts, with redundant ones and those ahead."""
        return self._groups_in_flight() * self._launched

    @property
    def _launched(self) -> int:
        """Number of attempts that a group starts with."""
        return self._pipeline.tasks.group_size + self._pipeline.rollout.redundancy

    def _groups_in_flight(self) -> int:
        buffer, rollout = self._pipeline.buffer, self._pipeline.rollout
        capacity = buffer.schedule.bound.capacity(buffer.batch_size)
        ahead = attempts_ahead(self._pipeline) // self._launched
        return capacity // self._pipeline.tasks.group_size + rollout.extra_groups + ahead

    def consumer(self) -> Iterator[Trained]:
        """Train on batches until there are no more; yield the result of each step."""
        train, scores = self._pipeline.train, self._pipeline.evaluate
        context = TrainContext(
            run=self._uri,
            algorithm=train.algorithm,
            branch_weight=train.branch_weight,
            trainers=self._processes.trainers,
            buffer=self._processes.buffer,
            coordinator=self._processes.coordinator,
            checkpoints=checkpoints_uri(self._uri),
            term=self._processes.folder_term,
            checkpoint_every=train.checkpoint_every,
            keep_versions=train.keep_versions,
            keep_checkpoints=train.keep_checkpoints,
            steps=train.steps,
            evaluated=evaluated_versions(train.steps, None if scores is None else scores.every),
            start=self._processes.recovered.start,
            max_skipped=train.max_skipped,
            overlap_publish=self._pipeline.offline
            or Phase.UPDATE in self._pipeline.buffer.schedule.before_training,
            stored=self._mixed(),
        )
        batches = ReportedSource(self._uri, self._batches())
        stage = OperatorStage(TrainOperator, (context,))
        for block in self._processes.executor.stream("batches", batches, stage):
            yield read_trained(block)

    def _batches(self) -> NextBlock:
        """Return the source of batches: those of the buffer, or those of what is stored."""
        processes = self._processes
        first = processes.recovered.version + 1
        if self._pipeline.offline:
            coordinator = cast("Remote[OfflineCoordinator]", processes.coordinator)
            (source,) = self._sources()
            return StoredBatches(coordinator, self._uri, source, first)
        rows = BatchRows(processes.buffer, processes.writers, self._uri)
        return Batches(self._admitting, rows, first, self._pipeline.train.steps)

    def _mixed(self) -> tuple[StoredSource, ...]:
        """Return the sources whose rows are trained on beside those of the buffer."""
        return () if self._pipeline.offline else self._sources()

    def _sources(self) -> tuple[StoredSource, ...]:
        if not self._pipeline.stored:
            return ()
        pins = repeated_query(
            f"read the events of {self._uri}", lambda: recorded_pins(Run(self._uri).snapshot())
        )
        return stored_sources(self._pipeline, pins)

    @property
    def _admitting(self) -> Remote[CoordinatorActor]:
        """The coordinator of a run that rolls out."""
        return cast("Remote[CoordinatorActor]", self._processes.coordinator)

    def evaluation(self) -> Iterator[list[dict[str, Any]]]:
        """Evaluate versions as they become due; yield each version's rows of `evaluations`."""
        node, evaluators = self._pipeline.evaluate, self._processes.evaluators
        if node is None or evaluators is None:
            return
        context = EvaluateContext(
            rollout=self._driver_context(node, node.domains, evaluators, {}),
            reward=self._reward(),
            domains=node.domains,
            episodes=node.episodes,
            samples=node.samples,
            redundancy=node.redundancy,
            sampling=sampling_of(node, node.domains, self._uri),
            seed=node.seed,
            coordinator=self._processes.coordinator,
            health=HealthLimits()
            if self._pipeline.offline
            else HealthLimits(answer_s=self._pipeline.rollout.engine_timeout_s),
        )
        due = self._processes.recovered.due_versions(self._pipeline.train.steps, node.every)
        versions = ReportedSource(self._uri, Versions(self._processes.coordinator, due))
        stage = OperatorStage(EvaluateOperator, (context,))
        for block in self._processes.executor.stream("versions", versions, stage):
            for scores in block["scores"].to_pylist():
                yield from_ipc(scores).to_pylist()

    def _reward(self, workers: int = 1) -> RewardSettings:
        """Return the settings of each of several reward stages, which share the limits of calls."""
        reward, isolated = self._pipeline.reward, self._processes.executor.isolates
        if reward is None:
            function, timeout_s = self._pipeline.reward_in("")
            places = _places(MAX_CONCURRENT, function)
            return RewardSettings(
                function, timeout_s, places, source=self._source, isolated=isolated
            )
        unscored = [node for node in self._pipeline.filters if not node.scored]
        before = named_filters(unscored, of_groups=False)
        places = reward.max_concurrent
        stages = None if self._pipeline.offline else self._pipeline.buffer.schedule.stages
        if stages is not None:
            places = min(places, stages.reward)
        places = math.ceil(_places(places, reward.function) / workers)
        return RewardSettings(
            reward.function,
            reward.timeout_s,
            places,
            timeouts={name: reward.timeout_in(name) for name in reward.by_domain},
            source=self._source,
            isolated=isolated,
            environ=reward.environ,
            before=before,
        )

    def _rollout_context(self) -> RolloutContext:
        processes = self._processes
        context = self._driver_context(
            self._pipeline.rollout,
            self._pipeline.tasks.domains,
            processes.engines,
            processes.affinity,
            self._admitting,
        )
        return replace(context, schedule=self._pipeline.buffer.schedule)

    def _driver_context(
        self,
        node: GeneratingNode,
        domains: tuple[Any, ...],
        engines: TypedCluster[EngineWorker],
        affinity: dict[str, str] | Literal["auto"],
        coordinator: Remote[CoordinatorActor] | None = None,
    ) -> RolloutContext:
        return RolloutContext(
            run=self._uri,
            domains={domain.name: domain for domain in domains},
            limits={
                domain.name: node.attempt_limits(domain, self._pipeline.policy)
                for domain in domains
            },
            agents={
                domain.name: agent
                for domain in domains
                if (agent := node.agent_in(domain.name)) is not None
            },
            policy_folder=policy_uri(self._uri),
            engines=engines,
            hw_affinity=affinity,
            buffer=self._processes.buffer,
            writers=self._processes.writers,
            coordinator=coordinator,
            isolated=self._processes.executor.isolates,
            source=self._source,
            sandboxes=self._processes.sandboxes,
            sandbox=self._pipeline.sandboxes.sandbox or "",
        )


def _places(most: int, function: RewardFunction) -> int:
    """Return the number of concurrent calls of a reward, of at most `most`."""
    remote = (each for each in single_functions(function) if isinstance(each, ServerlessReward))
    return min([most, *(each.policy.max_concurrent for each in remote)])


Stream = Callable[[], Iterator[Any]]

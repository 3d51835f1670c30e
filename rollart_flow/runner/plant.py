"""The processes of a run: buffer, coordinator, engine, trainer and evaluation workers.

They are started together, since each takes seconds to import what it needs, and they are told
where the tables say that the run stands. Placement is committed to `bindings`.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import ray

from rollart_flow.control.health import HealthLimits
from rollart_flow.control.intake import RolloutSettings
from rollart_flow.engines.worker import EngineWorker
from rollart_flow.errors import RunFailedError
from rollart_flow.models.policy import load_codec
from rollart_flow.operators.buffer import BufferActor, BufferSettings
from rollart_flow.operators.coordinator import CoordinatorActor, CoordinatorSettings
from rollart_flow.operators.filters import NamedFilter
from rollart_flow.operators.ipc import encode
from rollart_flow.operators.rebinding import Spawning
from rollart_flow.operators.recovery import Recovered
from rollart_flow.pipeline import Pipeline
from rollart_flow.pipeline.nodes import Filter
from rollart_flow.resources import CPU, Cluster, Placement, ResourceManager
from rollart_flow.resources.nodes import beside_driver
from rollart_flow.rows import events_table
from rollart_flow.runner.carrier import start_carrier
from rollart_flow.runner.placing import place_engines, place_sliding, place_trainer
from rollart_flow.schema import to_table
from rollart_flow.store.files import is_remote
from rollart_flow.store.layout import policy_uri, weights_uri
from rollart_flow.trainers.registry import TrainerSettings
from rollart_flow.trainers.worker import TrainWorker, gather_ranks
from rollart_flow.types import Event, EventKind, Reason, Sampling
from rollart_flow.weights import WeightStore, kept_weights
from rollart_flow.weights.mooncake.servers import WeightServers
from rollart_flow.weights.places import kept

CONCURRENT_CALLS = 10_000
"""Calls that an asynchronous actor serves at a time: long reads wait in it."""


_ANSWER_S = 60.0
"""Longest time to wait for actors to say that they live [s]."""


@dataclass(frozen=True, slots=True)
class Plant:
    """Handles of everything that runs, and where the run stands."""

    buffer: Any
    coordinator: Any
    engines: Cluster
    trainers: Cluster
    evaluators: Cluster | None
    recovered: Recovered
    affinity: dict[str, str] | Literal["auto"]
    """Resource class by domain, or that profilers find it."""
    fallbacks: tuple[tuple[str, str], ...]
    """Resource classes that were asked for and are not there, with what was granted instead."""
    kept: WeightStore
    """Versions that outlive the processes."""
    weight_servers: WeightServers | None
    """None where versions are carried by files, or by servers of others."""

    def begin(self) -> None:
        """Let the engines serve the version that the run stands at, which the trainers hold, and
        the coordinator drive the run."""
        version = self.recovered.version
        if version not in self.kept.versions():
            self.trainers.execute_all("publish", lasting=False)
        self.engines.execute_all("serve", version)
        ray.get(self.coordinator.start.remote(self.recovered, self.buffer, self.engines))

    def dead(self) -> tuple[str, ...]:
        """Names of the processes that have died, of those that are not replaced by themselves."""
        actors = {"buffer": self.buffer, "coordinator": self.coordinator}
        actors |= {worker.name: worker.actor for worker in self.trainers.workers}
        answers = {name: actor.__ray_ready__.remote() for name, actor in actors.items()}
        # Who does not answer in time is busy, not dead.
        given, _ = ray.wait(list(answers.values()), num_returns=len(answers), timeout=_ANSWER_S)
        died = tuple(name for name, answer in answers.items() if answer in given and _died(answer))
        lost = self.weight_servers is not None and self.weight_servers.lost
        return (*died, "mooncake") if lost else died

    def report_restarted(self, died: Sequence[str]) -> None:
        """Record that processes died and that the run goes on without what they held."""
        now = datetime.now(UTC)
        detail = {"restarted": True}
        crashes = [
            (now, Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))
            for name in died
        ]
        ray.get(self.buffer.report.remote(crashes))

    def shutdown(self) -> None:
        """End every process; whatever has to be kept was committed before."""
        for cluster in (self.engines, self.trainers, self.evaluators):
            if cluster is not None:
                cluster.shutdown()
        for actor in (self.coordinator, self.buffer):
            ray.kill(actor)
        if self.weight_servers is not None:
            self.weight_servers.close()


def start_plant(
    pipeline: Pipeline, uri: str, source: str | None, *, nodes_may_join: bool = False
) -> Plant:
    """Start every process of a run and wait until all are ready; `Plant.begin` sets them to work.

    Args:
        pipeline: with its overrides applied.
        uri: of the run, whose folder is complete.
        source: file of the pipeline, for what cannot be imported by name.
        nodes_may_join: whether the Ray cluster may get what it lacks now.

    Raises:
        StoreError: the run cannot be written.
        RunFailedError: a worker cannot start.
    """
    with ExitStack() as started:
        weights, servers = start_carrier(pipeline.train, uri)
        if servers is not None:
            started.callback(servers.close)
        buffer = _actor(BufferActor).remote(uri, _buffer_settings(pipeline))
        started.callback(ray.kill, buffer)
        recovering = buffer.start.remote()
        engines, trainers = _workers(pipeline, uri, weights)
        started.callback(trainers.shutdown)
        started.callback(engines.shutdown)
        clusters = [engines, trainers]
        if (evaluators := _evaluators(pipeline, uri, weights)) is not None:
            started.callback(evaluators.shutdown)
            clusters.append(evaluators)
        settings = _coordinator_settings(pipeline, uri, weights, nodes_may_join=nodes_may_join)
        coordinator = _actor(CoordinatorActor).remote(settings)
        started.callback(ray.kill, coordinator)
        recovered: Recovered = ray.get(recovering)
        if not gather_ranks(trainers) and is_remote(uri):
            raise RunFailedError(
                "train: ranks on several nodes write a checkpoint into one folder, which a run in "
                "S3 has on one node only; give a store that all nodes see as a folder"
            )
        bindings = [row for cluster in clusters for row in cluster.bindings()]
        fallbacks = _fallbacks(bindings)
        rows = {
            "bindings": encode(to_table("bindings", bindings)),
            "events": encode(events_table((datetime.now(UTC), event) for event in fallbacks)),
        }
        ray.get(buffer.commit.remote(rows))
        started.pop_all()
    chosen = pipeline.rollout.hw_affinity
    affinity = chosen if isinstance(chosen, str) else _wanted(engines)
    missing = tuple((event.subject, str(event.detail["granted"])) for event in fallbacks)
    return Plant(
        buffer,
        coordinator,
        engines,
        trainers,
        evaluators,
        recovered,
        affinity,
        missing,
        kept_weights(weights_uri(uri)),
        servers,
    )


def _workers(pipeline: Pipeline, uri: str, weights: str) -> tuple[Cluster, Cluster]:
    """Inference workers and trainers."""
    manager = ResourceManager()
    placed, training = place_engines(pipeline, manager), place_trainer(pipeline, manager)
    engines = Cluster(
        [*placed, *place_sliding(pipeline, training)],
        EngineWorker,
        arguments=_engine_arguments(pipeline, uri, weights),
        max_concurrency=CONCURRENT_CALLS,
    )
    return engines, _trainers(pipeline, uri, weights, training)


def _wanted(engines: Cluster) -> dict[str, str]:
    """Resource class by domain, of those that asked for one."""
    return {
        request.domain: request.resource
        for worker in engines.workers
        if not worker.placement.shares
        for request in worker.placement.requests
    }


def _died(answer: Any) -> bool:
    """Whether an answer is that its actor has died."""
    try:
        ray.get(answer)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.RayError:  # unreachable for a moment, as far as Ray knows
        return False
    return False


def _actor(actor_class: type) -> Any:
    return ray.remote(actor_class).options(
        num_cpus=0, max_concurrency=CONCURRENT_CALLS, label_selector=beside_driver()
    )


def _buffer_settings(pipeline: Pipeline) -> BufferSettings:
    return BufferSettings(
        schedule=pipeline.buffer.schedule,
        group_size=pipeline.tasks.group_size,
        commit_rows=pipeline.buffer.commit_rows,
        commit_ms=pipeline.buffer.commit_ms,
        filters=named_filters(pipeline.filters, of_groups=False),
        group_filters=named_filters(pipeline.filters, of_groups=True),
    )


def named_filters(nodes: Sequence[Filter], *, of_groups: bool) -> tuple[NamedFilter, ...]:
    """The filters that judge trajectories by themselves, or those that judge whole groups."""
    return tuple(NamedFilter(n.name, n.expr) for n in nodes if n.of_groups is of_groups)


def sampling_of(node: Any, uri: str) -> Sampling:
    """How a node draws tokens, with the stop tokens of the run's tokenizer."""
    codec = load_codec(kept(policy_uri(uri)))
    return Sampling(
        temperature=node.temperature,
        top_p=node.top_p,
        top_k=node.top_k,
        max_tokens=node.max_tokens,
        stop_token_ids=codec.stop_token_ids,
    )


def _coordinator_settings(
    pipeline: Pipeline, uri: str, weights: str, *, nodes_may_join: bool
) -> CoordinatorSettings:
    tasks, rollout, buffer = pipeline.tasks, pipeline.rollout, pipeline.buffer
    group_size = tasks.group_size
    spawning = Spawning(
        _engine_arguments(pipeline, uri, weights),
        CONCURRENT_CALLS,
        rollout.engine_workers,
        rollout.engine_units,
    )
    return CoordinatorSettings(
        sources=tasks.sources,
        task_seed=tasks.seed,
        task_weights=dict(tasks.weights) if tasks.weights else None,
        domains=tasks.domain_names,
        curriculum=tasks.curriculum,
        rollout=RolloutSettings(
            batch_size=buffer.batch_size,
            group_size=group_size,
            redundancy=rollout.redundancy,
            extra_groups=rollout.extra_groups,
            max_attempts=group_size + rollout.redundancy + rollout.max_replacements,
            sampling=sampling_of(rollout, uri),
            seed=pipeline.seed,
        ),
        schedule=buffer.schedule,
        steps=pipeline.train.steps,
        evaluate_every=pipeline.evaluate.every if pipeline.evaluate is not None else None,
        health=HealthLimits(answer_s=rollout.engine_timeout_s),
        spawning=spawning if nodes_may_join else None,
    )


def _engine_arguments(pipeline: Pipeline, uri: str, weights: str) -> dict[str, Any]:
    return {
        "policy": pipeline.policy,
        "folder": policy_uri(uri),
        "weights": weights,
        "weights_uri": weights_uri(uri),
        "seed": pipeline.seed,
    }


def _trainers(pipeline: Pipeline, uri: str, weights: str, placed: Sequence[Placement]) -> Cluster:
    train = pipeline.train
    return Cluster(
        placed,
        TrainWorker,
        arguments={
            "settings": trainer_settings(pipeline),
            "algorithm": train.algorithm,
            "folder": policy_uri(uri),
            "weights": weights,
            "weights_uri": weights_uri(uri),
        },
        # A restarted trainer would hold version 0: the session starts all processes anew instead.
        max_restarts=0,
    )


def trainer_settings(pipeline: Pipeline) -> TrainerSettings:
    """The trainer's settings as a pipeline has them."""
    train = pipeline.train
    return TrainerSettings(
        backend=train.backend,
        ranks=train.ranks,
        optimizer=train.optimizer,
        minibatches=train.minibatches,
        epochs=train.epochs,
        micro_batch_tokens=train.micro_batch_tokens,
        threads=train.threads,
        mismatch=train.mismatch,
        seed=pipeline.seed,
    )


def _evaluators(pipeline: Pipeline, uri: str, weights: str) -> Cluster | None:
    if pipeline.evaluate is None:
        return None
    return Cluster(
        [Placement("evaluator-0", "evaluation", CPU)],
        EngineWorker,
        arguments=_engine_arguments(pipeline, uri, weights),
        max_concurrency=CONCURRENT_CALLS,
    )


def _fallbacks(bindings: list[dict[str, Any]]) -> list[Event]:
    """One event for each class that stands in for one that was asked for."""
    rows = [row for row in bindings if row["fallback"]]
    by_class: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_class.setdefault((row["requested"], row["granted"]), []).append(row)
    return [
        Event(
            EventKind.FALLBACK,
            subject=requested,
            detail={
                "requested": requested,
                "granted": granted,
                "domains": sorted({row["domain"] for row in of_class}),
                "workers": sorted({row["worker"] for row in of_class}),
            },
        )
        for (requested, granted), of_class in by_class.items()
    ]

"""Settings of a run's processes, derived from its pipeline. This module starts no process."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from rollart_flow.control.inference.health import HealthLimits
from rollart_flow.control.schedule.schedules import sync
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.worker import EngineWorker
from rollart_flow.envs.base import Domain
from rollart_flow.models.version_zero import load_codec
from rollart_flow.operators.buffer import BufferSettings
from rollart_flow.operators.filters import NamedFilter
from rollart_flow.operators.offline import OfflineSettings
from rollart_flow.operators.rebinding import Spawning
from rollart_flow.operators.run_plane import CoordinatorSettings
from rollart_flow.operators.stored_rows import StoredSource
from rollart_flow.pipeline import Filter, GeneratingNode, Mix, Pipeline
from rollart_flow.store import Run
from rollart_flow.store.layout import adapter_uri, policy_uri, weights_uri
from rollart_flow.store.pins import PinnedRun
from rollart_flow.trainers.registry import trainer_capabilities
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.types import Sampling
from rollart_flow.weights.folder_store import local_path
from rollart_flow.weights.registry import transport_of

_COMMIT_ROWS, _COMMIT_MS = 128, 50.0
"""Micro-batches of an offline run, which has no buffer node to say them."""
CONCURRENT_CALLS = 10_000
"""Concurrent calls of an asynchronous actor; the number is large since long reads wait in it."""


def buffer_settings(pipeline: Pipeline) -> BufferSettings:
    """Return the buffer's settings for commits, schedule, and filters.

    The buffer of an offline run only commits.
    """
    if pipeline.offline:
        return BufferSettings(sync(), group_size=1, commit_rows=_COMMIT_ROWS, commit_ms=_COMMIT_MS)
    return BufferSettings(
        schedule=pipeline.buffer.schedule,
        group_size=pipeline.tasks.group_size,
        commit_rows=pipeline.buffer.commit_rows,
        commit_ms=pipeline.buffer.commit_ms,
        filters=named_filters(pipeline.filters, of_groups=False),
        group_filters=named_filters(pipeline.filters, of_groups=True),
    )


def named_filters(nodes: Sequence[Filter], *, of_groups: bool) -> tuple[NamedFilter, ...]:
    """Return the filters of single trajectories or, with `of_groups`, those of whole groups."""
    return tuple(NamedFilter(n.name, n.expression) for n in nodes if n.of_groups is of_groups)


def sampling_of(node: GeneratingNode, domains: Iterable[Domain], uri: str) -> dict[str, Sampling]:
    """Return a node's sampling by domain, with the stop tokens of the run's tokenizer."""
    stops: tuple[int, ...] | None = None
    found = {}
    for domain in domains:
        sampling = node.sampling_in(domain.name)
        if not sampling.stop_token_ids:
            stops = stops or load_codec(local_path(policy_uri(uri))).stop_token_ids
            sampling = replace(sampling, stop_token_ids=stops)
        found[domain.name] = sampling
    return found


def coordinator_settings(
    pipeline: Pipeline, uri: str, weights: str, *, nodes_may_join: bool
) -> CoordinatorSettings:
    """Return the coordinator's settings for admission, schedule, and starting engine workers."""
    tasks, rollout, buffer = pipeline.tasks, pipeline.rollout, pipeline.buffer
    group_size = tasks.group_size
    spawning = Spawning(
        rollout_arguments(pipeline, uri, weights),
        CONCURRENT_CALLS,
        {EngineWorker.role: rollout.engine_workers, EnginePhase.PREFILL: rollout.prefill_workers},
        rollout.engine_units,
    )
    return CoordinatorSettings(
        run=uri,
        sources=tasks.sources,
        task_seed=tasks.seed,
        task_weights=dict(tasks.weights) if tasks.weights else None,
        domains=tasks.domains,
        admitted=tasks.admitted,
        curriculum=tasks.curriculum,
        rollout=RolloutSettings(
            batch_size=buffer.batch_size,
            group_size=group_size,
            redundancy=rollout.redundancy,
            extra_groups=rollout.extra_groups,
            ahead=attempts_ahead(pipeline),
            extra_environments=0 if rollout.max_ahead is None else attempts_ahead(pipeline),
            max_attempts=group_size + rollout.redundancy + rollout.max_replacements,
            own_sampling=sampling_of(rollout, tasks.domains, uri),
            seed=pipeline.seed,
        ),
        schedule=buffer.schedule,
        steps=pipeline.train.steps,
        evaluate_every=pipeline.evaluate.every if pipeline.evaluate is not None else None,
        health=HealthLimits(answer_s=rollout.engine_timeout_s),
        spawning=spawning if nodes_may_join else None,
    )


def attempts_ahead(pipeline: Pipeline) -> int:
    """Return the most attempts that are reset before their group is admitted.

    An attempt that is ready keeps its place in a process and its box while it waits. One of each is
    left to the attempts that it waits for.
    """
    rollout, buffer = pipeline.rollout, pipeline.buffer
    if not buffer.schedule.resets_ahead:
        return 0
    agents = (rollout.agent_in(domain.name) for domain in pipeline.tasks.domains)
    places = [rollout.max_concurrent, rollout.sandboxes.max_sandboxes]
    places += [agent.init_slots for agent in agents if agent is not None]
    most = buffer.batch_size if rollout.max_ahead is None else rollout.max_ahead
    return min([most, *(each - 1 for each in places if each is not None)])


def offline_settings(pipeline: Pipeline, uri: str) -> OfflineSettings:
    """Return the settings of the coordinator of an offline run."""
    every = None if pipeline.evaluate is None else pipeline.evaluate.every
    return OfflineSettings(uri, pipeline.train.steps, every)


def stored_sources(
    pipeline: Pipeline, pins: Mapping[str, Sequence[PinnedRun]]
) -> tuple[StoredSource, ...]:
    """Return the sources of stored trajectories, with the runs that each is pinned to.

    Args:
        pipeline: the pipeline.
        pins: pinned runs by node.
    """
    train = pipeline.train
    counts = train.up.counts if isinstance(train.up, Mix) else (train.batch_size,)
    bound = None if train.buffer is None else train.buffer.schedule.bound
    return tuple(
        StoredSource(
            name=node.name,
            runs=tuple(pins.get(node.name, ())),
            filter=node.filter,
            prefer=node.prefer,
            best=node.best,
            count=count,
            seed=node.seed,
            split=node.split,
            exempt=node.exempt or train.buffer is None,
            paired=train.algorithm.needs_pairs,
            grouped=train.algorithm.compares_groups,
            bound=bound,
            rescored=node.rescored,
            unscored=node.unscored,
        )
        for node, count in zip(train.stored, counts, strict=False)
    )


def rank_settings(pipeline: Pipeline, uri: str | None = None) -> RankSettings:
    """Return the settings of each rank of the trainer.

    Args: `uri` is the address of the run, all of whose steps pack rows as its first one did.
    """
    trainer, policy = pipeline.train.trainer, pipeline.policy
    run = None if uri is None else Run(uri)
    mixed = policy.device == "cuda" and trainer_capabilities(trainer.backend).mixed_precision
    return RankSettings(
        **{each.name: getattr(trainer, each.name) for each in fields(trainer)},
        device=policy.device,
        dtype=policy.computes_in if mixed else "float32",
        seed=pipeline.seed,
        implementation=policy.implementation,
        adapter_base=_adapter_base(pipeline, run),
        packed=run is None or _packs_rows(run),
    )


def _adapter_base(pipeline: Pipeline, run: Run | None) -> int | None:
    """Return the version over which a run publishes adapters, or None if it merges them: in steps
    that an earlier version recorded, and for a trainer whose GPU sends weights to the engines."""
    if transport_of(pipeline.train.weight_store).capabilities.sends:
        return None
    return 0 if run is None else adapter_base(run)


def adapter_base(run: Run) -> int | None:
    """Return the version over which a run's adapters are; None if it publishes them merged."""
    start = run.info.parent.step if run.info.parent is not None else 0
    columns = run.weights.select("policy_version", "base_version").collect()
    base = dict(columns.iter_rows())
    if any(base[version] is None for version in base if version > start):
        return None
    own = base.get(start)
    return start if own is None else int(own)


def _packs_rows(run: Run) -> bool:
    recorded = run.steps.select("kernels").head(1).collect()["kernels"].to_list()
    return all(json.loads(kernels).get("packed", False) for kernels in recorded)


def engine_arguments(pipeline: Pipeline, uri: str, weights: str) -> dict[str, Any]:
    """Return the arguments of an `EngineWorker`; `weights` names the weight store to read from."""
    trainer = pipeline.train.trainer
    alone = trainer.lora is not None and _adapter_base(pipeline, Run(uri)) is not None
    return {
        "run": uri,
        "policy": pipeline.policy,
        "folder": policy_uri(uri),
        "weights": weights,
        "weights_uri": weights_uri(uri),
        "seed": pipeline.seed,
        "lora_rank": trainer.lora_rank if alone else 0,
    }


def evaluation_arguments(pipeline: Pipeline, uri: str, weights: str) -> dict[str, Any]:
    """Return the arguments of an engine worker for evaluation, which may use a LoRA adapter."""
    evaluate = pipeline.evaluate
    adapted = evaluate is not None and evaluate.lora is not None
    lora = adapter_uri(uri) if adapted else None
    return {**engine_arguments(pipeline, uri, weights), "lora": lora}


def rollout_arguments(pipeline: Pipeline, uri: str, weights: str) -> dict[str, Any]:
    """Return the arguments of an engine worker for rollout, with or without prefill workers."""
    disaggregated = pipeline.rollout.prefill_workers > 0
    return {**engine_arguments(pipeline, uri, weights), "disaggregated": disaggregated}

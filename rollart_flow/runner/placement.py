"""Placement of a pipeline's workers on a Ray cluster, and a preview of that placement.

Invariant: a preview requests exactly the same resources as a run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from rollart_flow.engines.base import EnginePhase
from rollart_flow.engines.registry import engine_capabilities
from rollart_flow.engines.worker import PREFIXES, EngineWorker
from rollart_flow.errors import RunFailedError
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import (
    CPU,
    ActorGenCls,
    ActorTrainCls,
    Placement,
    Request,
    ResourceManager,
)
from rollart_flow.runner.device_turns import (
    check_turns,
    engine_classes,
    holds_in_turns,
    place_in_turns,
)
from rollart_flow.runner.rollout_workers import place_rollout
from rollart_flow.runner.sandboxes import place_sandboxes
from rollart_flow.trainers.registry import trainer_capabilities
from rollart_flow.trainers.worker import TrainWorker

_EVALUATOR = "evaluator-0"


@dataclass(frozen=True, slots=True)
class Placed:
    """Placements of all workers of a run."""

    engines: list[Placement]
    """Engine workers; those that share the trainer's devices come last."""
    training: list[Placement]
    evaluation: list[Placement]
    """Evaluators; empty if the run has no evaluation."""
    sandboxes: list[Placement]
    """Workers that make boxes; empty if no domain opens boxes."""
    rollout: list[Placement]
    """Workers that drive environments; empty if they may be on any node."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Requested and granted resource class of a role for a domain."""

    role: str
    domain: str
    requested: str
    granted: str
    workers: int

    @property
    def fallback(self) -> bool:
        """Whether the granted class differs from the requested one."""
        return self.requested != self.granted


def place_engines(pipeline: Pipeline, manager: ResourceManager) -> list[Placement]:
    """Place the inference workers, the same number for each requested resource class.

    By default that is the class that suits generation best. If profilers determine the class of
    each domain, there are workers of every class.
    """
    affinity, role = pipeline.rollout.hw_affinity, EngineWorker.role
    prefix = PREFIXES[role]
    workers, units = pipeline.rollout.engine_workers, pipeline.rollout.engine_units
    if isinstance(affinity, str):
        wanted = {name: name for name in manager.accelerators()}
        placements = manager.place(role, wanted, workers, prefix=prefix, units=units)
        return [replace(p, requests=(Request("default", p.granted),)) for p in placements]
    rollout = pipeline.rollout
    wanted = {"default": manager.preferred(ActorGenCls)}
    wanted |= {domain: rollout.resource_class(domain) for domain in affinity}
    allowed = rollout.stand_ins()
    return manager.place(role, wanted, workers, prefix=prefix, units=units, stand_ins=allowed)


def place_prefill(pipeline: Pipeline, manager: ResourceManager) -> list[Placement]:
    """Place the inference workers that compute prompts for the others (ROLLART section 6.3).

    They use the requested class, by default the one that suits arithmetic best.
    """
    rollout = pipeline.rollout
    if not rollout.prefill_workers:
        return []
    role = EnginePhase.PREFILL.value
    return manager.place(
        role,
        {"default": rollout.prefill_affinity or manager.preferred(ActorTrainCls)},
        rollout.prefill_workers,
        prefix=PREFIXES[role],
        units=rollout.engine_units,
    )


def place_sliding(pipeline: Pipeline, trainers: Sequence[Placement]) -> list[Placement]:
    """Place inference workers on devices that are reserved for training."""
    shared = islice(cycle(trainers), pipeline.rollout.sliding_workers)
    return [
        replace(
            trainer,
            worker=f"sliding-{trainer.granted.lower()}-{index}",
            role=EngineWorker.role,
            requests=(Request("default", trainer.granted),),
            cpus=0.0,
            shares=True,
        )
        for index, trainer in enumerate(shared)
    ]


def place_trainer(
    pipeline: Pipeline, manager: ResourceManager, wanted: str | None = None
) -> list[Placement]:
    """Place the ranks of the trainer as one gang, by default on the class that suits it best."""
    classes = {"default": wanted or manager.preferred(ActorTrainCls)}
    return manager.place(TrainWorker.role, classes, pipeline.train.ranks, prefix="trainer")


def place_workers(pipeline: Pipeline, manager: ResourceManager) -> Placed:
    """Place all workers of a run and reserve their resources.

    Raises:
        SettingsError: engines and trainer must hold the same devices, and a setting prevents that.
        RunFailedError: no device has room for workers that must be on one.
    """
    engines: list[Placement] = []
    if pipeline.offline:
        turns, training = False, place_trainer(pipeline, manager)
    elif turns := holds_in_turns(pipeline, manager):
        check_turns(pipeline)
        wanted = next(iter(engine_classes(pipeline)), None)
        training = place_trainer(pipeline, manager, wanted)
    else:
        engines = [*place_engines(pipeline, manager), *place_prefill(pipeline, manager)]
        training = place_trainer(pipeline, manager)
    evaluation = [] if pipeline.evaluate is None else [Placement(_EVALUATOR, "evaluation", CPU)]
    sandboxes = place_sandboxes(pipeline, manager)
    rollout = [] if pipeline.offline else place_rollout(pipeline, manager)
    try:
        if pipeline.policy.device == "cuda":
            engines, training = _on_gpus(pipeline, manager, engines, training)
        if turns:
            engines, training = place_in_turns(pipeline, training)
    except RunFailedError:
        manager.release([*engines, *training, *sandboxes, *rollout])
        raise
    follows = engine_capabilities(pipeline.policy).follows_policy_device
    if pipeline.policy.device == "cuda" and follows:
        device = (engines or training)[0]
        evaluation = [_beside(device, placement) for placement in evaluation]
    if not pipeline.offline:
        engines += place_sliding(pipeline, training)
    return Placed(engines, training, evaluation, sandboxes, rollout)


def _on_gpus(
    pipeline: Pipeline,
    manager: ResourceManager,
    engines: list[Placement],
    training: list[Placement],
) -> tuple[list[Placement], list[Placement]]:
    """Move engines and trainers that follow the policy's device from CPUs to shares of GPUs."""
    follows = engine_capabilities(pipeline.policy).follows_policy_device
    generates = engines if follows else []
    trains_there = trainer_capabilities(pipeline.train.backend).follows_policy_device
    trains = training if trains_there else []
    moved = manager.to_gpus([*generates, *trains])
    return moved[: len(generates)] or engines, moved[len(generates) :] or training


def _beside(engine: Placement, evaluator: Placement) -> Placement:
    """Return an evaluator's placement that shares the device of an engine."""
    requests = (Request("default", engine.granted),)
    return replace(
        engine,
        worker=evaluator.worker,
        role=evaluator.role,
        requests=requests,
        cpus=0.0,
        shares=True,
        in_turns=False,
    )


def preview(pipeline: Pipeline) -> list[Grant]:
    """Return the grants of the connected cluster as of now; reserves them for a moment.

    Raises:
        RunFailedError: no Ray cluster is connected, or there is no GPU for a policy that needs one.
    """
    manager = ResourceManager()
    placed = place_workers(pipeline, manager)
    workers = [*placed.engines, *placed.training, *placed.sandboxes, *placed.rollout]
    placements = sorted(workers, key=lambda p: p.shares)
    own = [p for p in placed.engines if not (p.shares or p.in_turns)]
    manager.release([*own, *placed.training, *placed.sandboxes, *placed.rollout])
    counts: dict[tuple[str, str, str, str], int] = {}
    for placement in placements:
        for request in placement.requests:
            key = (placement.role, request.domain, request.resource, placement.granted)
            counts[key] = counts.get(key, 0) + 1
    return [Grant(*key, workers) for key, workers in counts.items()]

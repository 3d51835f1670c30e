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
from rollart_flow.pipeline.checks import stand_ins
from rollart_flow.resources import CPU, ActorGen, ActorTrain, Placement, Request, ResourceManager
from rollart_flow.resources.gpus import gpu_share, on_gpus
from rollart_flow.trainers.layout import CAPABILITIES
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
    wanted = {"default": manager.preferred(ActorGen)}
    wanted |= {domain: rollout.resource_class(domain) for domain in affinity}
    allowed = stand_ins(rollout.name, affinity)
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
        {"default": rollout.prefill_affinity or manager.preferred(ActorTrain)},
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


def place_trainer(pipeline: Pipeline, manager: ResourceManager) -> list[Placement]:
    """Place the trainer's ranks as one gang on the resource class that suits training best."""
    wanted = {"default": manager.preferred(ActorTrain)}
    return manager.place(TrainWorker.role, wanted, pipeline.train.ranks, prefix="trainer")


def place_workers(pipeline: Pipeline, manager: ResourceManager) -> Placed:
    """Place all workers of a run and reserve their resources.

    Raises:
        RunFailedError: the policy computes on a GPU, and there is none for a worker.
    """
    engines = [*place_engines(pipeline, manager), *place_prefill(pipeline, manager)]
    training = place_trainer(pipeline, manager)
    evaluation = [] if pipeline.evaluate is None else [Placement(_EVALUATOR, "evaluation", CPU)]
    if pipeline.policy.device == "cuda":
        try:
            engines, training = _on_gpus(pipeline, engines, training)
        except RunFailedError:
            manager.release([*engines, *training])
            raise
        if engine_capabilities(pipeline.policy).follows_policy_device:
            evaluation = [_beside(engines[0], placement) for placement in evaluation]
    return Placed([*engines, *place_sliding(pipeline, training)], training, evaluation)


def _on_gpus(
    pipeline: Pipeline, engines: list[Placement], training: list[Placement]
) -> tuple[list[Placement], list[Placement]]:
    """Move engines and trainers that follow the policy's device from CPUs to shares of GPUs."""
    follows = engine_capabilities(pipeline.policy).follows_policy_device
    generates = engines if follows else []
    trains = training if CAPABILITIES[pipeline.train.backend].follows_policy_device else []
    count = sum(placement.granted == CPU for placement in (*generates, *trains))
    if not count:
        return engines, training
    moved = on_gpus([*generates, *trains], gpu_share(count))
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
    )


def preview(pipeline: Pipeline) -> list[Grant]:
    """Return the grants of the connected cluster as of now; reserves them for a moment.

    Raises:
        RunFailedError: no Ray cluster is connected, or there is no GPU for a policy that needs one.
    """
    manager = ResourceManager()
    placed = place_workers(pipeline, manager)
    placements = sorted([*placed.engines, *placed.training], key=lambda p: p.shares)
    manager.release([placement for placement in placements if not placement.shares])
    counts: dict[tuple[str, str, str, str], int] = {}
    for placement in placements:
        for request in placement.requests:
            key = (placement.role, request.domain, request.resource, placement.granted)
            counts[key] = counts.get(key, 0) + 1
    return [Grant(*key, workers) for key, workers in counts.items()]

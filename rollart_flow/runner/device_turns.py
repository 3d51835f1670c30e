"""Engines and trainer that hold the same devices in turns: what prevents it, and their placement.

Invariant: a schedule that puts engines on the trainer's devices is refused in one line where they
cannot free each other's memory.
"""

from collections.abc import Sequence
from dataclasses import replace

from rollart_flow.control.schedule.declarations import Swap
from rollart_flow.engines.worker import PREFIXES, EngineWorker
from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import CPU, Placement, Request, ResourceManager
from rollart_flow.trainers.registry import trainer_capabilities
from rollart_flow.weights.registry import transport_of


def holds_in_turns(pipeline: Pipeline, manager: ResourceManager) -> bool:
    """Whether engines and trainer must hold the same devices in turns: the schedule says so, and
    there are devices other than CPUs."""
    devices = pipeline.policy.device == "cuda" or manager.accelerators() != (CPU,)
    return pipeline.buffer.schedule.shared and devices


def check_one_class(pipeline: Pipeline) -> None:
    """Refuse engines of several resource classes whose schedule puts them on the trainer's devices.

    Raises:
        SettingsError: names the classes.
    """
    if pipeline.offline or not pipeline.buffer.schedule.shared:
        return
    if len(classes := engine_classes(pipeline)) > 1:
        raise SettingsError(
            f"{_in_turns(pipeline)}: rollout.hw_affinity must name one class, "
            f"not {' and '.join(classes)}"
        )


def _in_turns(pipeline: Pipeline) -> str:
    """Return how an error about devices that are held in turns begins."""
    buffer = pipeline.buffer
    return f"{buffer.name}: schedule {buffer.schedule.name} puts engines on the trainer's devices"


def check_turns(pipeline: Pipeline) -> None:
    """Refuse a pipeline whose engines and trainer cannot hold the same devices in turns.

    Raises:
        SettingsError: names the setting to change.
    """
    check_one_class(pipeline)
    rollout, train = pipeline.rollout, pipeline.train
    swap = pipeline.buffer.schedule.swap
    refused = (
        (swap is not Swap.AFTER, "its engines must not generate while it trains"),
        (isinstance(rollout.hw_affinity, str), "rollout.hw_affinity cannot be 'auto'"),
        (rollout.sliding_workers > 0, "set rollout.sliding_workers to 0"),
        (rollout.prefill_workers > 0, "set rollout.prefill_workers to 0"),
        (rollout.engine_units > 1, f"set rollout.engine_units to 1, not {rollout.engine_units}"),
        (
            rollout.engine_workers != train.ranks,
            f"rollout.engine_workers ({rollout.engine_workers}) and train.ranks ({train.ranks}) "
            "must be equal",
        ),
        (
            not trainer_capabilities(train.backend).offloads,
            f"the {train.backend} trainer cannot free their memory; set another train.backend",
        ),
        (
            transport_of(train.weights).capabilities.sends,
            f"train.weights={train.weights!r} must be 'local' or 'mooncake'",
        ),
    )
    for applies, reason in refused:
        if applies:
            raise SettingsError(f"{_in_turns(pipeline)}: {reason}")


def engine_classes(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the resource classes that the rollout's affinity names first, in order."""
    rollout = pipeline.rollout
    return tuple(dict.fromkeys(rollout.resource_class(domain) for domain in rollout.hw_affinity))


def place_in_turns(
    pipeline: Pipeline, training: Sequence[Placement]
) -> tuple[list[Placement], list[Placement]]:
    """Place an engine worker on the device of each rank; the two hold it in turns.

    Returns:
        Placements of the engines and of the trainer.

    Raises:
        RunFailedError: the trainer is on CPUs although there are other devices.
    """
    if any(placement.granted == CPU for placement in training):
        raise RunFailedError(
            f"{_in_turns(pipeline)}, but the {len(training)} ranks of the "
            f"{pipeline.train.backend} trainer were placed on CPUs; lower train.ranks, or free "
            "devices of one class"
        )
    trainers = [replace(placement, in_turns=True) for placement in training]
    engines = [
        replace(
            trainer,
            worker=f"{PREFIXES[EngineWorker.role]}-{trainer.granted.lower()}-{index}",
            role=EngineWorker.role,
            requests=(Request("default", trainer.granted),),
            cpus=0.0,
        )
        for index, trainer in enumerate(trainers)
    ]
    return engines, trainers

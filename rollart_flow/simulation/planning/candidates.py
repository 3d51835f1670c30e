"""Allocations from which a search starts."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations

from rollart_flow.engines.registry import engine_capabilities
from rollart_flow.errors import SettingsError
from rollart_flow.pipeline.graph import Graph
from rollart_flow.simulation.hardware import Roofline
from rollart_flow.simulation.planning.allocation import Allocation, trainer_classes
from rollart_flow.simulation.planning.demand import Demand
from rollart_flow.simulation.planning.devices import CPU, DEVICES
from rollart_flow.simulation.planning.splits import DeviceSplit
from rollart_flow.simulation.report.bounds import batch_of, work_s

Affinity = tuple[tuple[str, str], ...]
_DEGREES = (1, 2, 4, 8)
_MEMORY = 0.9
"""Share of a device's memory that training may take; assumed."""


def affinities(hardware: Mapping[str, int], demand: Demand) -> Iterator[Affinity]:
    """Bind all domains to one class, or each of two classes to the domains that it suits better.

    Domains are ordered by how much longer an attempt takes on one class than on the other; every
    place in that order is tried as the border between the classes.
    """
    names = demand.names
    for name in hardware:
        yield tuple((domain, name) for domain in names)
    for one, two in combinations(hardware, 2):
        ordered = sorted(names, key=lambda d: (_cost(d, one, demand) / _cost(d, two, demand), d))
        for border in range(1, len(ordered)):
            first = set(ordered[:border])
            yield tuple((domain, one if domain in first else two) for domain in names)


def _cost(domain: str, name: str, demand: Demand) -> float:
    """Time of an engine for the attempts of a domain [s]."""
    engine = Roofline(demand.model, DEVICES[name], _degree(name, demand))
    scripts = [script for _, script in demand.scripts(0, 64, domain)]
    batch = batch_of(len(scripts), engine)
    return math.fsum(work_s(script, engine, batch) for script in scripts)


def _degree(name: str, demand: Demand) -> int:
    """Fewest devices of a class that hold the model and the KV cache of a trajectory."""
    for degree in _DEGREES:
        if Roofline(demand.model, DEVICES[name], degree).kv_tokens >= demand.context_tokens:
            return degree
    raise SettingsError(
        f"{demand.model.name} does not fit {_DEGREES[-1]} {name} beside the KV cache of "
        f"{demand.context_tokens} tokens; name a class with more memory"
    )


def least_ranks(name: str, demand: Demand) -> int:
    """Fewest devices of a class that hold weights, gradients and optimizer."""
    return max(1, math.ceil(demand.trained_bytes / (_MEMORY * DEVICES[name].memory_gb * 1e9)))


def sized(
    pipeline: Graph, hardware: Mapping[str, int], demand: Demand, affinity: Affinity
) -> Iterator[Allocation]:
    """Allocations with as few devices as the model needs, one for each size of a worker.

    Raises:
        SettingsError: the engine does not split the model over as many devices as it needs.
    """
    classes = dict.fromkeys(name for _, name in affinity)
    least = max(_degree(name, demand) for name in classes)
    splits = engine_capabilities(pipeline.policy).splits_model
    if least > 1 and not splits:
        raise SettingsError(
            f"{demand.model.name} needs {least} {next(iter(classes))} for one engine worker, and "
            f"the engine {pipeline.policy.engine} computes on one; set policy.engine=vllm"
        )
    trainer = trainer_classes(hardware)
    for name in trainer:
        for units in (least, 2 * least) if splits and least < _DEGREES[-1] else (least,):
            one = Allocation(
                affinity=affinity,
                workers=1,
                units=units,
                trainer=name,
                ranks=least_ranks(name, demand),
                schedule=pipeline.buffer.schedule,
                redundancy=pipeline.rollout.redundancy,
            )
            if all(count <= hardware.get(of, 0) for of, count in one.devices.items()):
                yield one


def check_request(hardware: Mapping[str, int], pipeline: Graph, demand: Demand) -> None:
    """Refuse hardware for which no plan can be made.

    Raises:
        SettingsError: not even one engine worker and the trainer have room, which says how many
            devices they need; CPUs beside other classes, or without a run on CPUs.
    """
    if CPU in hardware:
        _check_cpus(hardware, demand)
        return
    if any(any(sized(pipeline, hardware, demand, each)) for each in affinities(hardware, demand)):
        return
    name, trainer = next(iter(hardware)), trainer_classes(hardware)[0]
    there = ", ".join(f"{count} {of}" for of, count in hardware.items())
    raise SettingsError(
        f"too few devices: {demand.model.name} needs {_degree(name, demand)} {name} for one engine "
        f"worker and {least_ranks(trainer, demand)} {trainer} to train, but there are {there}"
    )


def _check_cpus(hardware: Mapping[str, int], demand: Demand) -> None:
    if len(hardware) > 1:
        raise SettingsError("--hardware CPU is for CPUs alone; leave CPU or the others out")
    if demand.recorded is None:
        raise SettingsError("how fast CPUs are is not known; give a run on them with --from RUN")
    measured = demand.recorded.scenario.measured
    assert measured is not None, "of a stored run"
    others = {engine.hardware for engine, _ in measured.engines} - {CPU}
    if others:
        raise SettingsError(
            f"run {demand.recorded.scenario.name} generated on {', '.join(sorted(others))}, so it "
            "does not show how fast CPUs are; give a run on CPUs with --from"
        )


def splits_of(
    plain: Allocation,
    pipeline: Graph,
    hardware: Mapping[str, int],
    demand: Demand,
    split: DeviceSplit,
) -> Iterator[Allocation]:
    """Allocations that divide the trainer's class by beta*, by half of it and by twice as much."""
    least = least_ranks(plain.trainer, demand)
    total = hardware[plain.trainer]
    share = split.best_share(plain, total)
    for factor in (1.0, 0.5, 2.0):
        ranks = total
        if plain.trainer in plain.classes:
            ranks = min(round(share * factor * total), total - plain.units)
        ranks = max(least, ranks)
        for trained in dict.fromkeys((ranks, max(least, round(ranks * factor)))):
            used = {plain.trainer: trained + plain.prefill * plain.units}
            rooms = [(hardware[n] - used.get(n, 0)) // plain.units for n in plain.classes]
            one = replace(plain, workers=min(rooms), ranks=min(trained, total))
            if one.workers > 0 and one.fits(hardware):
                yield one

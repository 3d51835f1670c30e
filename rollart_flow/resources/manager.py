"""`ResourceManager`: pools of hardware, the binding of workers to them, and fallbacks.

This is the resource binding of ROLLART section 5.2, over Ray's node table and placement groups
instead of a separate store. Invariants: a gang of workers is placed whole or not at all, and a
class that is full or gone never stalls a deployment: the next compatible class is granted, CPU as
the last resort, and the binding records it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray

from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.resources.classes import COMPATIBLE, CPU, GPU, KINDS, Kind
from rollart_flow.resources.declarations import DEFAULT, declarations, wanted_classes
from rollart_flow.resources.worker import Placement, Request, Worker

_SHARED = (Kind.LOCAL, Kind.CPU)
"""Kinds whose units are counted again under the name of a class, or are no accelerators."""

GRACE_S = 5.0
"""How long a class may be full before another one is granted [s]; Ray needs a moment to grant
released resources again."""


@dataclass(frozen=True, slots=True)
class ResourcePool:
    """The current state of one resource class."""

    name: str
    total: float
    """Units of all living nodes."""
    free: float
    """Units that are not reserved."""
    nodes: tuple[str, ...]
    """Ids of the living nodes that have units of the class."""


def live_pools() -> dict[str, ResourcePool]:
    """The pools of the connected Ray cluster by class, from its node table.

    Raises:
        RunFailedError: no Ray cluster is connected.
    """
    if not ray.is_initialized():
        raise RunFailedError("no Ray cluster is connected; start the run through `rollart run`")
    available = ray.available_resources()
    totals: Counter[str] = Counter()
    nodes: dict[str, list[str]] = {}
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        for name, units in node["Resources"].items():
            if not _internal(name):
                totals[name] += units
                nodes.setdefault(name, []).append(node["NodeID"])
    return {
        name: ResourcePool(name, total, available.get(name, 0.0), tuple(nodes[name]))
        for name, total in totals.items()
    }


def _internal(name: str) -> bool:
    """Whether a Ray resource is not a pool: memory, a node address or a placement group bundle."""
    return name in ("memory", "object_store_memory") or ":" in name or "_group_" in name


class ResourceManager:
    """Grants workers their resource classes.

    Args:
        pools: units that may be used of each class, as a number or as the list of them
            (Listing 1: {"H800": range(0, 8), "H20": range(8, 32)}); None: all that Ray has.
        compatible: classes that may stand in for a class, the best first.
        kinds: kinds of classes, in addition to `KINDS`.
        grace_s: see `GRACE_S`.

    Raises:
        SettingsError: a number of units is negative.
    """

    def __init__(
        self,
        pools: Mapping[str, int | Sequence[int]] | None = None,
        *,
        compatible: Mapping[str, Sequence[str]] = COMPATIBLE,
        kinds: Mapping[str, Kind] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._limits = None if pools is None else {k: _units(k, v) for k, v in pools.items()}
        self._compatible = compatible
        self._grace_s = grace_s
        self._kinds = {**KINDS, **(kinds or {})}
        self._granted: Counter[str] = Counter()
        """Units by class that this manager has given out."""

    def pools(self) -> dict[str, ResourcePool]:
        """The pools that this manager may grant, by class, within the limits that it was given."""
        pools = live_pools()
        if self._limits is None:
            return pools
        return {
            name: replace(
                pool, total=min(pool.total, limit), free=min(pool.free, limit - self._granted[name])
            )
            for name, pool in pools.items()
            if (limit := self._limits.get(name, pool.total if name == CPU else 0))
        }

    def _reserve(
        self, names: Sequence[str], workers: int, cpus: float, units: int
    ) -> tuple[str, Any]:
        """(class, placement group of one bundle for each worker) for a gang of the first class that
        has room; no group on CPU. See `bundle_of`."""
        pools = self.pools()
        for name in names:
            if name == CPU or name not in pools:
                continue
            if pools[name].total - (self._granted[name] if self._limits else 0) < workers * units:
                continue
            bundle = bundle_of(name, units, cpus)
            group = ray.util.placement_group([bundle] * workers, strategy="PACK")
            if group.wait(self._grace_s):
                self._granted[name] += workers * units
                return name, group
            ray.util.remove_placement_group(group)
        return CPU, None

    def accelerators(self) -> tuple[str, ...]:
        """Every class with accelerators, in order; CPU only where there is none."""
        names = self.pools().keys() - {
            name for name, kind in self._kinds.items() if kind in _SHARED
        }
        return tuple(sorted(names)) or (CPU,)

    def preferred(self, worker_class: type[Worker]) -> str:
        """The available class that suits a role best (ROLLART section 5.2)."""
        pools = self.pools()
        for kind in worker_class.prefers:
            names = [name for name in pools if self._kinds.get(name) is kind]
            if names:
                return max(names, key=lambda name: (pools[name].free, name))
        return CPU

    def place(
        self,
        role: str,
        wanted: Mapping[str, str],
        workers: Mapping[str, int] | int = 1,
        *,
        prefix: str | None = None,
        cpus: float = 0.1,
        units: int = 1,
        stand_ins: Mapping[str, Sequence[str]] | None = None,
    ) -> list[Placement]:
        """Workers for each class that is asked for, reserved at once: all of a class or none.

        A class that falls back to another requested class adds its workers to that class; classes
        that fall back to CPU share their workers.

        Args:
            role: role of the workers.
            wanted: resource class by domain.
            workers: number of workers for each class; a mapping if the numbers differ.
            prefix: prefix of the workers' names, before class and number; None: the role.
            cpus: share of a CPU for each worker.
            units: units of the class for each worker, on one node; not counted on CPU.
            stand_ins: fallbacks by class; the manager's for classes that are not in the mapping.
        """
        counts = {
            name: workers if isinstance(workers, int) else workers.get(name, 1)
            for name in dict.fromkeys(wanted.values())
        }
        compatible = {**self._compatible, **(stand_ins or {})}
        granted = {
            name: self._reserve((name, *compatible.get(name, ())), count, cpus, units)
            for name, count in counts.items()
        }
        placements = []
        for given in dict.fromkeys(name for name, _ in granted.values()):
            asked = [name for name, (each, _) in granted.items() if each == given]
            requests = tuple(
                Request(domain, name) for domain, name in wanted.items() if name in asked
            )
            bundles = [(granted[name][1], i) for name in asked for i in range(counts[name])]
            if given == CPU:
                bundles = [(None, 0)] * max(counts[name] for name in asked)
            placements += [
                Placement(
                    f"{prefix or role}-{given.lower()}-{index}",
                    role,
                    given,
                    requests,
                    cpus,
                    0.0 if given == CPU else float(units),
                    group=group,
                    bundle=bundle,
                    devices=devices_of(given, units),
                )
                for index, (group, bundle) in enumerate(bundles)
            ]
        return placements

    def place_class(self, worker_class: type[Worker]) -> list[Placement]:
        """Workers of a class where its methods' `hw_mapping` asks for them, else where its role
        is best placed: one for each unit of the pools that were given, otherwise one each."""
        wanted = wanted_classes(declarations(worker_class))
        wanted = wanted or {DEFAULT: self.preferred(worker_class)}
        return self.place(worker_class.role, wanted, self._limits or 1)

    def release(self, placements: Sequence[Placement]) -> None:
        """Return the resources of ended workers, so that they can be granted again."""
        free_gangs(placements)
        for placement in placements:
            if placement.granted != CPU:
                self._granted[placement.granted] -= int(placement.gpus)


def devices_of(name: str, units: int) -> float:
    """Number of GPUs, as Ray counts them, of some units of a class.

    The number is 0 if a living node that has the class reports no GPUs.
    """
    pools = live_pools()
    if name == CPU or name not in pools or GPU not in pools:
        return 0.0
    return float(units) if set(pools[name].nodes) <= set(pools[GPU].nodes) else 0.0


def bundle_of(name: str, units: int, cpus: float) -> dict[str, float]:
    """The bundle that Ray reserves for one worker on units of a class, including their GPUs."""
    devices = devices_of(name, units)
    return {name: float(units), CPU: cpus} | ({GPU: devices} if devices else {})


def _units(name: str, units: int | Sequence[int]) -> int:
    count = units if isinstance(units, int) else len(units)
    if count < 0:
        raise SettingsError(f"the pool {name} has {count} units, but must have at least 0")
    return count


def free_gangs(placements: Sequence[Placement]) -> None:
    """Remove the Ray placement groups that were reserved for workers."""
    for group in {p.group.id: p.group for p in placements if p.group is not None}.values():
        ray.util.remove_placement_group(group)

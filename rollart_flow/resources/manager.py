"""`ResourceManager`: pools of hardware, the binding of workers to them, and fallbacks.

This is the resource binding of ROLLART section 5.2, over Ray's node table and placement groups
instead of a separate store. Invariants: a gang of workers is placed whole or not at all, and a
class that is full or gone never stalls a deployment: the next compatible class is granted, CPU as
the last resort, and the binding records it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollart_flow.errors import SettingsError
from rollart_flow.resources.classes import COMPATIBLE, CPU, GPU, KINDS, Kind
from rollart_flow.resources.declarations import DEFAULT, declarations, wanted_classes
from rollart_flow.resources.gpus import gpu_share, on_gpus
from rollart_flow.resources.placement import Placement, Request
from rollart_flow.resources.pools import GRACE_S, ResourcePool, live_pools
from rollart_flow.resources.worker import Worker

_SHARED = (Kind.LOCAL, Kind.CPU)
"""Kinds whose units are counted again under the name of a class, or are no accelerators."""


ANY_NODE = "any"
"""Node of a worker for which no resources are reserved."""


class ResourceManager:
    """Grants workers their resource classes.

    Args:
        pools: mappings of the units that may be used of each class, each as a number or as the
            list of the units (Listing 1: {"H800": range(0, 8)}, {"H20": range(8, 32)}); without
            them, all that Ray has.
        compatible: fallbacks of each class, the best first.
        kinds: kinds of classes, in addition to `KINDS`.
        grace_s: see `GRACE_S`.

    Raises:
        SettingsError: a number of units is negative, or two mappings name one class.
    """

    def __init__(
        self,
        *pools: Mapping[str, int | Sequence[int]],
        compatible: Mapping[str, Sequence[str]] = COMPATIBLE,
        kinds: Mapping[str, Kind] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._limits = _limits(pools) if pools else None
        self._compatible = compatible
        self._grace_s = grace_s
        self._kinds = {**KINDS, **(kinds or {})}
        self._granted: Counter[str] = Counter()
        """Units by class that this manager has given out."""

    def pools(self) -> dict[str, ResourcePool]:
        """Return the pools that this manager may grant, by class, within its limits."""
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
        """Reserve a gang of workers in the first class that has room.

        Returns:
            The class, and a placement group with one bundle for each worker (`bundle_of`); CPU
            needs no group.
        """
        pools = self.pools()
        for name in names:
            if name == CPU or name not in pools:
                continue
            if pools[name].total - (self._granted[name] if self._limits else 0) < workers * units:
                continue
            bundle = bundle_of(name, units, cpus)
            import ray

            group = ray.util.placement_group([bundle] * workers, strategy="PACK")
            if group.wait(self._grace_s):
                self._granted[name] += workers * units
                return name, group
            ray.util.remove_placement_group(group)
        return CPU, None

    def accelerators(self) -> tuple[str, ...]:
        """Return the classes with accelerators in order, or CPU alone if there is none."""
        names = self.pools().keys() - {
            name for name, kind in self._kinds.items() if kind in _SHARED
        }
        return tuple(sorted(names)) or (CPU,)

    def preferred(self, worker_class: type[Worker]) -> str:
        """Return the available class that suits a role best (ROLLART section 5.2)."""
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
        """Place workers of each requested class; all workers of a class are reserved or none is.

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

    def place_class(self, worker_class: type[Worker], units: int = 1) -> list[Placement]:
        """Place workers of a class: as its methods' `hw_mapping` says, or where its role suits.

        The workers use all units of the pools that the manager was given; without such pools, there
        is one worker for each requested class.

        Args:
            worker_class: class of the workers.
            units: units of its resource class for each worker.
        """
        wanted = wanted_classes(declarations(worker_class))
        wanted = wanted or {DEFAULT: self.preferred(worker_class)}
        workers = {name: max(1, limit // units) for name, limit in (self._limits or {}).items()}
        return self.place(worker_class.role, wanted, workers or 1, units=units)

    def to_gpus(self, placements: Sequence[Placement]) -> list[Placement]:
        """Move the workers on CPUs to equal shares of the free GPUs that Ray counts by itself.

        Raises:
            RunFailedError: there is no free GPU.
        """
        count = sum(placement.granted == CPU for placement in placements)
        return on_gpus(placements, gpu_share(count)) if count else list(placements)

    def release(self, placements: Sequence[Placement]) -> None:
        free_gangs(placements)
        for placement in placements:
            if placement.granted != CPU:
                self._granted[placement.granted] -= int(placement.gpus)


def devices_of(name: str, units: int) -> float:
    """Return the number of GPUs, as Ray counts them, behind some units of a class.

    The number is 0 if a living node that has the class reports no GPUs.
    """
    if name == CPU:
        return 0.0
    pools = live_pools()
    if name not in pools or GPU not in pools:
        return 0.0
    return float(units) if set(pools[name].nodes) <= set(pools[GPU].nodes) else 0.0


def bundle_of(name: str, units: int, cpus: float) -> dict[str, float]:
    """Return the bundle that Ray reserves for one worker on units of a class, with their GPUs."""
    devices = devices_of(name, units)
    return {name: float(units), CPU: cpus} | ({GPU: devices} if devices else {})


def _limits(pools: Sequence[Mapping[str, int | Sequence[int]]]) -> dict[str, int]:
    given = Counter(name for pool in pools for name in pool)
    if repeated := [name for name, times in given.items() if times > 1]:
        raise SettingsError(f"the pool {repeated[0]} is given twice; name each class once")
    return {name: _units(name, units) for pool in pools for name, units in pool.items()}


def _units(name: str, units: int | Sequence[int]) -> int:
    count = units if isinstance(units, int) else len(units)
    if count < 0:
        raise SettingsError(f"the pool {name} has {count} units, but must have at least 0")
    return count


def free_gangs(placements: Sequence[Placement]) -> None:
    """Remove the Ray placement groups that were reserved for workers."""
    for group in _groups(placements):
        import ray

        ray.util.remove_placement_group(group)


def still_reserved(placements: Sequence[Placement]) -> bool:
    """Return whether Ray still has what it reserved for workers, of which it loses what a node had
    with the node."""
    import ray

    tables = [ray.util.placement_group_table(group) for group in _groups(placements)]
    return all(table["state"] == "CREATED" for table in tables)


def node_of(placement: Placement) -> str:
    """Return the id of the node on which a worker's resources are reserved, or "any"."""
    if placement.group is None:
        return ANY_NODE
    import ray

    nodes = ray.util.placement_group_table(placement.group)["bundles_to_node_id"]
    return str(nodes[placement.bundle])


def _groups(placements: Sequence[Placement]) -> list[Any]:
    return list({p.group.id: p.group for p in placements if p.group is not None}.values())

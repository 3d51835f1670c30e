"""Pools of the connected Ray cluster: the units of each resource class."""

from collections import Counter
from dataclasses import dataclass

from rollart_flow.errors import RunFailedError

GRACE_S = 5.0
"""Time to wait for room in a full class before another class is granted [s]; Ray takes a moment to
make released resources available again."""


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
    """Return the pools of the connected Ray cluster by class, from its node table.

    Raises:
        RunFailedError: no Ray cluster is connected.
    """
    import ray

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

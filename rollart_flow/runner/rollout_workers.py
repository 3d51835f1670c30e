"""The placement of the processes that drive environments and score what they finish.

Ray Data starts and restarts them, and a later part of the stream has processes of its own beside
those of the part before. They are on the nodes where a unit of the class is reserved for each
worker, as long as these nodes are there.
"""

from collections.abc import Sequence
from typing import Any

from rollart_flow.pipeline import Pipeline
from rollart_flow.resources import CPU, Placement, ResourceManager
from rollart_flow.resources.manager import ANY_NODE, node_of

_ROLE = "rollout"
_CPUS = 0.5
"""Share of a CPU that is reserved for each worker, beside its unit of the class."""


def place_rollout(pipeline: Pipeline, manager: ResourceManager) -> list[Placement]:
    """Place the rollout workers on their class; there are none to place if that is CPU.

    All of them are on the requested class, on the first fallback that has room, or on CPUs.
    """
    first, *others = pipeline.rollout.worker_affinity
    if first == CPU:
        return []
    workers, cpus = pipeline.rollout.workers, _CPUS
    wanted, stand_ins = {"default": first}, {first: others}
    return manager.place(_ROLE, wanted, workers, cpus=cpus, stand_ins=stand_ins)


def rollout_nodes(placements: Sequence[Placement]) -> frozenset[str]:
    """Return the ids of the nodes on which units are reserved for rollout workers."""
    return frozenset(node_of(placement) for placement in placements) - {ANY_NODE}


def rollout_bindings(placements: Sequence[Placement]) -> list[dict[str, Any]]:
    """Return the rows of `bindings` of the rollout workers; on CPUs their node is any."""
    return [row for placement in placements for row in placement.bindings(node_of(placement))]

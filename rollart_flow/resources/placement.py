"""Placements: the resources that a worker was granted, and the requests that it serves."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A domain and the resource class that it requests; "default" stands for all other domains."""

    domain: str
    resource: str


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a worker and the requests it serves; each request is a row of `bindings`."""

    worker: str
    role: str
    granted: str
    """Resource class."""
    requests: tuple[Request, ...] = (Request("default", "CPU"),)
    cpus: float = 0.1
    gpus: float = 0.0
    """Units of the granted class; 0 on CPU."""
    rank: int = 0
    """Position of the worker in its cluster."""
    world_size: int = 1
    """Number of workers in the cluster."""
    group: Any = None
    """Ray placement group with the worker's reserved resources, or None if none are reserved."""
    bundle: int = 0
    """Index of the worker's bundle in the group."""
    devices: float = 0.0
    """Number of GPUs, as Ray counts them, behind the units; CUDA shows the worker only these."""
    shares: bool = False
    """Whether the worker runs on another worker's resources and reserves none of its own."""
    in_turns: bool = False
    """Whether the worker and another one hold these units in turns; each reserves a half."""
    spread: bool = False
    """Whether workers without a group go to nodes that have few of them."""

    @property
    def stands_for(self) -> frozenset[str]:
        """Classes whose requests the worker serves: its own, and those that it replaces."""
        return frozenset((self.granted, *(request.resource for request in self.requests)))

    def bindings(self, node: str) -> list[dict[str, Any]]:
        """Return the rows of `bindings` of the worker, which runs on a node."""
        return [
            {
                "worker": self.worker,
                "role": self.role,
                "domain": request.domain,
                "requested": request.resource,
                "granted": self.granted,
                "fallback": request.resource != self.granted,
                "node": node,
                "cpus": self.cpus,
                "gpus": self.gpus,
                "bound_at": datetime.now(UTC),
            }
            for request in self.requests
        ]

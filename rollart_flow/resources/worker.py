"""`Worker`: the unit of execution that a `Cluster` spawns as a Ray actor (ROLLART section 5.1).

A worker knows its name and the resource class that it was granted; subclasses hold an engine, a
trainer or the state of another stage. Every public method of a subclass becomes callable on its
`Cluster`, as its decorators declare (`resources.declarations`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from rollart_flow.resources.classes import Kind
from rollart_flow.resources.declarations import declarations


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

    @property
    def stands_for(self) -> frozenset[str]:
        """Classes whose requests the worker serves: its own, and those that it replaces."""
        return frozenset((self.granted, *(request.resource for request in self.requests)))


class Worker:
    """Base of all workers. Their `Cluster` passes the placement as the first argument."""

    role: ClassVar[str] = "worker"
    prefers: ClassVar[tuple[Kind, ...]] = (Kind.CPU,)
    """Kinds of hardware that suit the role, the best first; declarations of methods override it."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        for declared in declarations(type(self)).values():
            if declared.attribute is not None and declared.url is not None:
                from rollart_flow.resources.endpoint_proxy import EndpointProxy

                setattr(self, declared.attribute, EndpointProxy(declared.url))

    def node(self) -> str:
        """Return the id of the Ray node that the worker runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


class ActorGenCls(Worker):
    """A worker that generates. Decoding is bound by memory bandwidth."""

    role = "generation"
    prefers = (Kind.BANDWIDTH, Kind.COMPUTE, Kind.CPU)


class ActorTrainCls(Worker):
    """A worker that trains. Training is bound by compute."""

    role = "training"
    prefers = (Kind.COMPUTE, Kind.BANDWIDTH, Kind.CPU)


class RewardCls(Worker):
    """A stateless worker that scores trajectories, on local GPUs or on CPUs."""

    role = "reward"
    prefers = (Kind.LOCAL, Kind.CPU)


class EnvironmentCls(Worker):
    """A worker that runs environments, on CPU nodes."""

    role = "environment"

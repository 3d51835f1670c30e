"""`Worker`: the unit of execution that a `Cluster` spawns as a Ray actor (ROLLART section 5.1).

A worker knows its name and the resource class it was granted; subclasses hold an engine, a
trainer or whatever else a stage needs. Everything public on a subclass becomes callable on its
`Cluster`; decorators say how (`resources.declarations`).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from rollart_flow.resources.classes import Kind
from rollart_flow.resources.declarations import declarations


@dataclass(frozen=True, slots=True)
class Request:
    """A domain that asks for a resource class; `default` stands for all others."""

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
    """Units of the class that it runs on; 0 on CPU."""
    rank: int = 0
    """Place among the workers of its cluster."""
    world_size: int = 1
    """Workers of its cluster."""
    group: Any = None
    """Ray placement group with the resources reserved for the worker; None: none are reserved."""
    bundle: int = 0
    """Index of the worker's bundle in the group."""
    devices: float = 0.0
    """GPUs as Ray counts them that these units are, so that CUDA shows the worker no others."""
    shares: bool = False
    """Whether it runs on the resources of another worker, and reserves none of its own."""
    in_turns: bool = False
    """Whether it and one other worker hold these units in turns, of which each reserves a half."""

    @property
    def stands_for(self) -> frozenset[str]:
        """Classes whose requests it serves: its own, and those that it replaces."""
        return frozenset((self.granted, *(request.resource for request in self.requests)))


class Worker:
    """Base of all workers. The first constructor argument is given by the `Cluster`."""

    role: ClassVar[str] = "worker"
    prefers: ClassVar[tuple[Kind, ...]] = (Kind.CPU,)
    """Kinds of hardware that suit it where no method says more, the best first."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        for declared in declarations(type(self)).values():
            if declared.attribute is not None and declared.url is not None:
                from rollart_flow.serverless import ServerlessReward

                setattr(self, declared.attribute, ServerlessReward(declared.url))

    def node(self) -> str:
        """Id of the Ray node that the worker runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


class ActorGen(Worker):
    """Generates; decoding is bound by memory bandwidth."""

    role = "generation"
    prefers = (Kind.BANDWIDTH, Kind.COMPUTE, Kind.CPU)


class ActorTrain(Worker):
    """Trains; bound by compute."""

    role = "training"
    prefers = (Kind.COMPUTE, Kind.BANDWIDTH, Kind.CPU)


class RewardWorker(Worker):
    """Scores trajectories and holds no state: on a GPU beside the others, or on a CPU."""

    role = "reward"
    prefers = (Kind.LOCAL, Kind.CPU)


class EnvironmentWorker(Worker):
    """Runs environments on CPU nodes."""

    role = "environment"

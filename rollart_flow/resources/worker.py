"""`Worker`: the unit of execution that a `Cluster` spawns as a Ray actor (ROLLART section 5.1).

A worker knows its name and the resource class that it was granted; subclasses hold an engine, a
trainer or the state of another stage. Every public method of a subclass becomes callable on its
`Cluster`, as its decorators declare (`resources.declarations`).
"""

from typing import ClassVar

from rollart_flow.resources.classes import Kind
from rollart_flow.resources.declarations import declarations
from rollart_flow.resources.nodes import node_id
from rollart_flow.resources.placement import Placement


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
        """Return the id of the Ray node that the worker runs on, or the name of this machine."""
        return node_id()


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


ActorGen = ActorGenCls
ActorTrain = ActorTrainCls
EnvironmentWorker = EnvironmentCls
RewardWorker = RewardCls
"""Names of earlier versions."""

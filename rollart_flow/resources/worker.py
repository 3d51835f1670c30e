"""`Worker`: the unit of execution that a `Cluster` spawns as a Ray actor (ROLLART section 5.1).

A worker knows its name and the resource class it was granted; subclasses hold an engine, a
trainer or whatever else a stage needs. Everything public on a subclass becomes callable on its
`Cluster`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A domain that asks for a resource class; `default` stands for all others."""

    domain: str
    resource: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a worker is put, and for whom; a row of `bindings` for each request."""

    worker: str
    role: str
    granted: str
    """Resource class."""
    requests: tuple[Request, ...] = (Request("default", "CPU"),)
    cpus: float = 0.1
    gpus: float = 0.0


class Worker:
    """Base of all workers. The first constructor argument is given by the `Cluster`."""

    role = "worker"

    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def node(self) -> str:
        """Id of the Ray node that the worker runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


class ActorGen(Worker):
    """Role of workers that generate; bandwidth-optimized GPUs suit it best."""

    role = "generation"


class ActorTrain(Worker):
    """Role of workers that train; compute-optimized GPUs suit it best."""

    role = "training"

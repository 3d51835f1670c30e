"""`Cluster`: a group of workers of one role, spawned as Ray actors and called as one.

A method's declaration (`resources.declarations`) says how a call runs: on all workers, on the first
one, split by data-parallel rank, on one worker of the class that suits a domain, or at a serverless
endpoint. A method without a declaration runs on all workers. Ray restarts a worker that dies once;
if it dies again, it is lost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from rollart_flow.errors import RollartError, RunFailedError, SettingsError
from rollart_flow.resources.classes import CPU, GPU
from rollart_flow.resources.declarations import declarations, tell_ray
from rollart_flow.resources.handles import WorkerHandle
from rollart_flow.resources.local import wait
from rollart_flow.resources.manager import ResourceManager, free_gangs
from rollart_flow.resources.methods import BoundMethod
from rollart_flow.resources.placement import Placement
from rollart_flow.resources.reasons import failures, reason
from rollart_flow.resources.worker import Worker

W = TypeVar("W", bound=Worker, covariant=True)

Spawn = Callable[[type[Worker], Placement, Mapping[str, Any]], Any]
"""Function that starts a worker of a class with its placement and its other arguments, and returns
the worker's actor."""


class _Methods:
    """All methods of a cluster as attributes."""

    def __init__(self, methods: Mapping[str, BoundMethod]) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> BoundMethod:
        if name not in self._methods:
            raise AttributeError(f"the workers have no public method {name!r}")
        return self._methods[name]


class TypedCluster(Generic[W]):
    """Workers of one class, whose methods are called through `call`.

    A cluster can be pickled: the copy calls the same workers, and needs neither the worker's class
    nor its imports.
    """

    workers: Sequence[WorkerHandle[W]]

    def __init__(
        self,
        resources: ResourceManager | Sequence[Placement],
        worker_class: type[W],
        *,
        arguments: Mapping[str, Any] | None = None,
        data_parallel: int | None = None,
        units: int = 1,
        max_concurrency: int = 1,
        max_restarts: int = 1,
        spawn: Spawn | None = None,
    ) -> None:
        """Spawn the workers without waiting for them; see `wait_until_ready`.

        Args:
            resources: manager that grants the workers their resources, or placements that were
                already granted.
            worker_class: class of the workers.
            arguments: keyword arguments of every worker's constructor, after its placement.
            data_parallel: number of data-parallel ranks, which "split" counts; workers of one rank
                are adjacent. By default every worker is a rank.
            units: units of its resource class for each worker that the manager places, as for
                tensor parallelism.
            max_concurrency: number of concurrent calls in a worker with async methods.
            max_restarts: number of times that Ray restarts a worker.
            spawn: starts a worker; by default as an actor of Ray.

        Raises:
            SettingsError: the ranks do not divide the workers.
        """
        self._manager = resources if isinstance(resources, ResourceManager) else None
        if isinstance(resources, ResourceManager):
            granted = resources.place_class(worker_class, units)
        else:
            granted = list(resources)
        ranks = data_parallel or len(granted)
        if ranks < 0 or (granted and len(granted) % ranks):
            self._release(granted)
            raise SettingsError(
                f"data_parallel is {data_parallel}, but must divide the {len(granted)} workers"
            )
        count = len(granted)
        placements = [replace(p, rank=i, world_size=count) for i, p in enumerate(granted)]
        spawn = spawn or _spawn_with_ray(max_concurrency, max_restarts)
        self.workers = [
            WorkerHandle(placement, spawn(worker_class, placement, arguments or {}))
            for placement in placements
        ]
        self._methods = {
            name: BoundMethod(name, self.workers, declared, ranks, getattr(worker_class, name))
            for name, declared in declarations(worker_class).items()
        }

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which does not own the workers' reservations."""
        return {"workers": self.workers, "_methods": self._methods, "_manager": None}

    @property
    def call(self) -> type[W]:
        """The declared methods of the workers: `cluster.call.method(...)` waits for the result, and
        `await cluster.call.method.aio(...)` does the same in an event loop.
        """
        return cast("type[W]", _Methods(self._methods))

    def wait_until_ready(self) -> list[str]:
        """Wait until every worker answers; return the ids of their nodes, in worker order.

        Raises:
            RunFailedError: a worker could not start; the message has its name and the reason.
        """
        nodes = []
        for worker in self.workers:
            try:
                nodes.append(wait(worker.actor.node.remote(), f"start of {worker.name}"))
            except failures(RollartError) as error:
                raise RunFailedError(
                    f"worker {worker.name} cannot start: {reason(error)}"
                ) from error
        return nodes

    def bindings(self) -> list[dict[str, Any]]:
        """Return the rows of `bindings`: requested class, granted class and node of each worker."""
        placed = zip((w.placement for w in self.workers), self.wait_until_ready(), strict=True)
        return [row for placement, node in placed for row in placement.bindings(node)]

    def shutdown(self) -> None:
        """Kill every worker and release the resources that are reserved for them."""
        for worker in self.workers:
            worker.kill()
        self._release([worker.placement for worker in self.workers])

    def _release(self, placements: Sequence[Placement]) -> None:
        if self._manager is None:
            free_gangs(placements)
        else:
            self._manager.release(placements)


class Cluster(TypedCluster[W]):
    """A cluster with every public method of the worker class as its own method.

    `cluster.method(x)` is `cluster.call.method(x)` without static types, as in the paper (ROLLART
    sections 5.1 and 5.3, Listing 2).
    """

    def execute_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method on every worker and return all results in worker order."""
        calls = [getattr(w.actor, method).remote(*args, **kwargs) for w in self.workers]
        return list(wait(calls, f"{', '.join(w.name for w in self.workers)}: {method}"))

    def __getattr__(self, name: str) -> BoundMethod:
        methods: dict[str, BoundMethod] = self.__dict__.get("_methods", {})
        if name not in methods:
            raise AttributeError(f"{type(self).__name__} has no method {name!r}")
        return methods[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]


def _spawn_with_ray(max_concurrency: int, max_restarts: int) -> Spawn:
    import ray

    def spawn(
        worker_class: type[Worker], placement: Placement, arguments: Mapping[str, Any]
    ) -> Any:
        for name in declarations(worker_class):
            tell_ray(getattr(worker_class, name))
        remote = ray.remote(worker_class).options(
            max_concurrency=max_concurrency, max_restarts=max_restarts, **_reservation(placement)
        )
        return remote.remote(placement, **arguments)

    return spawn


def _reservation(placement: Placement) -> dict[str, Any]:
    """Return Ray's options of a worker's actor: its CPUs, accelerators and placement group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    options: dict[str, Any] = {"num_cpus": placement.cpus}
    if not placement.shares:
        part = 0.5 if placement.in_turns else 1.0
        if placement.devices:
            options["num_gpus"] = placement.devices * part
        if placement.granted not in (CPU, GPU):
            options["resources"] = {placement.granted: (placement.gpus or 1) * part}
    if placement.spread:
        options["scheduling_strategy"] = "SPREAD"
    if placement.group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            placement.group, placement_group_bundle_index=placement.bundle
        )
    return options

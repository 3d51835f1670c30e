"""`Cluster`: a group of workers of one role, spawned as Ray actors and called as one.

Every public method of the worker class is a method of the cluster (ROLLART sections 5.1 and 5.3,
Listing 2). What a method declares (`resources.declarations`) says how: on all workers, on the first
one, split by data-parallel rank, on one worker of the class that suits a domain, or at a serverless
endpoint; one that declares nothing runs on all workers. `cluster.method(x)` waits for the results,
`await cluster.method.aio(x)` does the same for callers in an event loop. A worker that dies is
restarted once in place by Ray, then given up.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.resources.classes import CPU, GPU
from rollart_flow.resources.declarations import declarations
from rollart_flow.resources.manager import ResourceManager, free_gangs
from rollart_flow.resources.methods import BoundMethod
from rollart_flow.resources.reasons import reason
from rollart_flow.resources.worker import Placement, Worker


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """One spawned worker: its placement and its actor."""

    placement: Placement
    actor: Any

    @property
    def name(self) -> str:
        """Name of the worker, unique in the run."""
        return self.placement.worker


class Cluster:
    """Workers of one class.

    A cluster can be pickled: the handles travel without the worker class and its imports.
    """

    def __init__(
        self,
        resources: ResourceManager | Sequence[Placement],
        worker_class: type[Worker],
        *,
        arguments: Mapping[str, Any] | None = None,
        data_parallel: int | None = None,
        max_concurrency: int = 1,
        max_restarts: int = 1,
    ) -> None:
        """Spawn the workers; `wait_until_ready` waits for them.

        Args:
            resources: who grants the workers what they ask for (one for each unit of its pools), or
                the placements that were granted.
            worker_class: what to spawn.
            arguments: keyword arguments of every worker's constructor, after its placement.
            data_parallel: ranks that "split" counts; workers of one rank stand side by side. None:
                every worker is one.
            max_concurrency: calls that a worker serves at once (async methods).
            max_restarts: restarts in place before Ray gives a worker up.

        Raises:
            SettingsError: the ranks do not divide the workers.
        """
        self._manager = resources if isinstance(resources, ResourceManager) else None
        if isinstance(resources, ResourceManager):
            asked = resources.place_class(worker_class)
        else:
            asked = list(resources)
        ranks = data_parallel or len(asked)
        if ranks < 0 or (asked and len(asked) % ranks):
            self._release(asked)
            raise SettingsError(
                f"data_parallel is {data_parallel}, but must divide the {len(asked)} workers"
            )
        placements = [replace(p, rank=i, world_size=len(asked)) for i, p in enumerate(asked)]
        remote = ray.remote(worker_class)
        self.workers = [
            WorkerHandle(
                placement,
                remote.options(
                    max_concurrency=max_concurrency,
                    max_restarts=max_restarts,
                    **_reservation(placement),
                ).remote(placement, **(arguments or {})),
            )
            for placement in placements
        ]
        self._methods = {
            name: BoundMethod(
                name,
                self.workers,
                declared,
                ranks,
                getattr(worker_class, name),
            )
            for name, declared in declarations(worker_class).items()
        }

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy, which calls the workers but does not own their reservations."""
        return {"workers": self.workers, "_methods": self._methods, "_manager": None}

    def wait_until_ready(self) -> list[str]:
        """Return once every worker answers; the node that each runs on, in worker order.

        Raises:
            RunFailedError: a worker could not start; says which and why.
        """
        nodes = []
        for worker in self.workers:
            try:
                nodes.append(ray.get(worker.actor.node.remote()))
            except ray.exceptions.RayError as error:
                raise RunFailedError(
                    f"worker {worker.name} cannot start: {reason(error)}"
                ) from error
        return nodes

    def bindings(self) -> list[dict[str, Any]]:
        """Rows of `bindings`: requested class, granted class and node of each worker."""
        placed = zip((w.placement for w in self.workers), self.wait_until_ready(), strict=True)
        return [
            {
                "worker": placement.worker,
                "role": placement.role,
                "domain": request.domain,
                "requested": request.resource,
                "granted": placement.granted,
                "fallback": request.resource != placement.granted,
                "node": node,
                "cpus": placement.cpus,
                "gpus": placement.gpus,
                "bound_at": datetime.now(UTC),
            }
            for placement, node in placed
            for request in placement.requests
        ]

    def execute_all(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method on every worker and wait for all results, in worker order."""
        calls = [getattr(w.actor, method).remote(*args, **kwargs) for w in self.workers]
        return list(ray.get(calls))

    async def execute_all_async(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """`execute_all` for callers in an event loop."""
        calls = [getattr(w.actor, method).remote(*args, **kwargs) for w in self.workers]
        return list(await asyncio.gather(*calls))

    def __getattr__(self, name: str) -> BoundMethod:
        methods: dict[str, BoundMethod] = self.__dict__.get("_methods", {})
        if name not in methods:
            raise AttributeError(f"{type(self).__name__} has no method {name!r}")
        return methods[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def shutdown(self) -> None:
        """Kill every worker, and release the resources reserved for them."""
        for worker in self.workers:
            ray.kill(worker.actor)
        self._release([worker.placement for worker in self.workers])

    def _release(self, placements: Sequence[Placement]) -> None:
        if self._manager is None:
            free_gangs(placements)
        else:
            self._manager.release(placements)


def _reservation(placement: Placement) -> dict[str, Any]:
    """Ray actor options: a share of a CPU, a unit of an accelerator, its bundle of a gang."""
    options: dict[str, Any] = {"num_cpus": placement.cpus}
    if not placement.shares:
        part = 0.5 if placement.in_turns else 1.0
        if placement.devices:
            options["num_gpus"] = placement.devices * part
        if placement.granted not in (CPU, GPU):
            options["resources"] = {placement.granted: (placement.gpus or 1) * part}
    if placement.group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            placement.group, placement_group_bundle_index=placement.bundle
        )
    return options

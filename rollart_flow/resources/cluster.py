"""`Cluster`: a group of workers of one role, spawned as Ray actors and called as one.

`Cluster(...).method(x)` calls `method(x)` on every worker and returns the list of results
(ROLLART Listing 2, `execute_all`); `method_async` does the same for callers in an event loop.
A worker that dies is restarted once in place by Ray, then given up.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import ray

from rollart_flow.errors import RunFailedError
from rollart_flow.resources.pools import reservation
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

    Picklable: handles travel to whoever calls the workers, without the class and what it imports.
    """

    def __init__(
        self,
        worker_class: type[Worker],
        placements: list[Placement],
        *,
        arguments: Mapping[str, Any],
        max_concurrency: int = 1,
        max_restarts: int = 1,
    ) -> None:
        """Spawn one worker for each placement; `wait_until_ready` waits for them.

        Args:
            worker_class: what to spawn.
            placements: where, and under which name.
            arguments: keyword arguments of every worker's constructor, after its placement.
            max_concurrency: calls that a worker serves at once (async methods).
            max_restarts: restarts in place before Ray gives a worker up.
        """
        self._methods = {
            name: getattr(worker_class, name).__doc__
            for name in dir(worker_class)
            if not name.startswith("_") and callable(getattr(worker_class, name))
        }
        remote = ray.remote(worker_class)
        self.workers = [
            WorkerHandle(
                placement,
                remote.options(
                    max_concurrency=max_concurrency,
                    max_restarts=max_restarts,
                    **reservation(placement.granted, placement.cpus),
                ).remote(placement, **arguments),
            )
            for placement in placements
        ]

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
        """Rows of `bindings`: who was asked for which class, and got which, where."""
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

    def __getattr__(self, name: str) -> Callable[..., list[Any]]:
        methods = self.__dict__.get("_methods", {})
        if name not in methods:
            raise AttributeError(f"{type(self).__name__} has no method {name!r}")

        def call(*args: Any, **kwargs: Any) -> list[Any]:
            return self.execute_all(name, *args, **kwargs)

        call.__name__ = name
        call.__doc__ = methods[name]
        return call

    def shutdown(self) -> None:
        """Kill every worker."""
        for worker in self.workers:
            ray.kill(worker.actor)

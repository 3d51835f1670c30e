"""Methods of a worker class, bound to the workers of a cluster (ROLLART section 5.3).

Invariant: a call returns when all workers have returned or the first one has raised. A call that is
routed by domain runs on one worker, or on another one if that worker has died.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rollart_flow.resources.declarations import DEFAULT, Declaration, domain_of
from rollart_flow.resources.dispatch import MODES, Call, Collect
from rollart_flow.resources.handles import WorkerHandle
from rollart_flow.resources.local import wait
from rollart_flow.resources.reasons import deaths, unreachable

if TYPE_CHECKING:
    import ray


class BoundMethod:
    """Calls one method on the workers of a cluster, as its declaration says.

    It has the name, docstring, signature and type hints of the method. Copies in other processes
    have only the name and the docstring, since the hints may name modules that are missing there.
    """

    def __init__(
        self,
        name: str,
        workers: Sequence[WorkerHandle[Any]],
        declared: Declaration,
        ranks: int,
        method: Callable[..., Any],
    ) -> None:
        self.__name__ = name
        self.__doc__ = method.__doc__
        self.__annotations__ = dict(getattr(method, "__annotations__", {}))
        self.__signature__ = _without_self(method)
        self._workers = workers
        self._declared = declared
        self._ranks = ranks
        self._in_flight: dict[str, int] = {}
        self._died: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "__annotations__": {}, "__signature__": None, "_in_flight": {}}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method and wait for the result.

        Raises:
            Exception: the method's own error, or Ray's error if the worker died.
        """
        call = (args, kwargs)
        if self._declared.redirected:
            return asyncio.run(self._at_endpoint(call))
        if not self._declared.routed:
            return self.begin(*args, **kwargs)()
        first, others = self._candidates(call)
        while True:
            worker = self._least_loaded(first or others)
            try:
                with self._counted(worker):
                    return wait(self._send(worker, call), self._waited([worker]))
            except unreachable() as error:
                self._discard(worker, (first, others), error)

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method from an event loop."""
        call = (args, kwargs)
        if self._declared.redirected:
            return await self._at_endpoint(call)
        if not self._declared.routed:
            references, collect = self._start(call)
            return collect(list(await asyncio.gather(*references)))
        first, others = self._candidates(call)
        while True:
            worker = self._least_loaded(first or others)
            try:
                with self._counted(worker):
                    return await self._send(worker, call)
            except unreachable() as error:
                self._discard(worker, (first, others), error)

    def begin(self, *args: Any, **kwargs: Any) -> Callable[[], Any]:
        """Start the call on all workers of its mode; return a function that waits for the result.

        Raises:
            TypeError: which worker answers the method is found out while it is called.
        """
        if self._declared.redirected or self._declared.routed:
            raise TypeError(f"{self.__name__} is routed; call it, or start it on one worker")
        references, collect = self._start((args, kwargs))
        return lambda: collect(wait(references, self._waited(self._workers)))

    def start(self, *args: Any, **kwargs: Any) -> "ray.ObjectRef[Any]":
        """Start the call on the first worker alone and return a reference to its result."""
        return self._send(self._workers[0], (args, kwargs))

    def _start(self, call: Call) -> "tuple[list[ray.ObjectRef[Any]], Collect]":
        """Start a call; return references to all results, and the function that combines them."""
        mode = self._declared.mode or MODES["execute_all"]
        routed = self._declared.affinity is not None
        workers = self._of_domain(call) if routed else self._workers
        ranks = min(self._ranks, len(workers)) if mode.by_rank else len(workers)
        width = len(workers) // ranks if ranks else 1
        calls = mode.dispatch(ranks, *call)
        references = [
            self._send(worker, each)
            for rank, each in enumerate(calls)
            for worker in workers[rank * width : (rank + 1) * width]
        ]
        return references, lambda results: mode.collect(results[::width])

    def _waited(self, workers: Sequence[WorkerHandle[Any]]) -> str:
        """Return the name of a wait for workers."""
        return f"{', '.join(worker.name for worker in workers)}: {self.__name__}"

    def _send(self, worker: WorkerHandle[Any], call: Call) -> "ray.ObjectRef[Any]":
        args, kwargs = call
        sent: ray.ObjectRef[Any] = getattr(worker.actor, self.__name__).remote(*args, **kwargs)
        return sent

    def _of_domain(self, call: Call) -> list[WorkerHandle[Any]]:
        """Return the workers of the resource class that the call's domain is mapped to.

        If there are none, return the workers that were granted in their place, or else all.
        """
        affinity = self._declared.affinity or {}
        domain = domain_of(self._declared, call)
        wanted = affinity.get(domain, affinity.get(DEFAULT))
        alive = [w for w in self._workers if w.name not in self._died] or list(self._workers)
        of_class = [w for w in alive if w.placement.granted == wanted]
        instead = [w for w in alive if any(r.resource == wanted for r in w.placement.requests)]
        return of_class or instead or alive

    def _candidates(self, call: Call) -> tuple[list[WorkerHandle[Any]], list[WorkerHandle[Any]]]:
        """Return the workers to try first, and those to try if none of these can be reached."""
        first = self._of_domain(call)
        return first, [w for w in self._workers if w not in first and w.name not in self._died]

    def _least_loaded(self, workers: Sequence[WorkerHandle[Any]]) -> WorkerHandle[Any]:
        return min(workers, key=lambda worker: self._in_flight.get(worker.name, 0))

    @contextmanager
    def _counted(self, worker: WorkerHandle[Any]) -> Iterator[None]:
        self._in_flight[worker.name] = self._in_flight.get(worker.name, 0) + 1
        try:
            yield
        finally:
            self._in_flight[worker.name] -= 1

    def _discard(
        self,
        worker: WorkerHandle[Any],
        candidates: tuple[list[WorkerHandle[Any]], list[WorkerHandle[Any]]],
        error: Exception,
    ) -> None:
        """Remove an unreachable worker from this call's candidates; forget it if it has died.

        Raises:
            RayError: no candidate is left.
        """
        for workers in candidates:
            if worker in workers:
                workers.remove(worker)
        if isinstance(error, deaths()):
            self._died.add(worker.name)
        if not any(candidates):
            raise error

    async def _at_endpoint(self, call: Call) -> Any:
        from rollart_flow.serverless import ServerlessReward

        args, kwargs = call
        (argument,) = (*args, *kwargs.values())
        client = ServerlessReward(str(self._declared.url))
        try:
            if isinstance(argument, list | tuple):
                return list(await asyncio.gather(*(client(each) for each in argument)))
            return await client(argument)
        finally:
            await client.close()


def _without_self(method: Callable[..., Any]) -> inspect.Signature | None:
    """Return the method's signature without `self`, or None if Python knows no signature."""
    try:
        signature = inspect.signature(method)
    except ValueError:
        return None
    # Ray adds its own parameter to the methods of actor classes.
    own = [p for p in signature.parameters.values() if not p.name.startswith("_ray")]
    return signature.replace(parameters=own[1:])

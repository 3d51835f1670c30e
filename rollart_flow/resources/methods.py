"""A method of a worker class as its `Cluster` has it (ROLLART section 5.3).

The invariant: who calls it waits for all results or gets the first error; a call that is routed by
domain is run by one worker, and by another one where that is gone.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray

from rollart_flow.resources.declarations import DEFAULT, Declaration, domain_of
from rollart_flow.resources.dispatch import MODES, Call, Collect

if TYPE_CHECKING:
    from rollart_flow.resources.cluster import WorkerHandle

_GONE = (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError)


class BoundMethod:
    """Calls one method on the workers of a cluster, as it declares.

    Has the name, docstring, signature and type hints of the method. Copies that travel to other
    processes have name and docstring only: hints may name what is not installed there.
    """

    def __init__(
        self,
        name: str,
        workers: "Sequence[WorkerHandle]",
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
        self._gone: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "__annotations__": {}, "__signature__": None, "_in_flight": {}}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it and wait.

        Raises:
            Exception: what the method raised, or Ray's where its worker died.
        """
        call = (args, kwargs)
        if self._remote:
            return asyncio.run(self._at_endpoint(call))
        if not self._routed:
            references, collect = self._start(call)
            return collect(ray.get(references))
        left, others = self._in_turn(call)
        while True:
            worker = self._least_loaded(left or others)
            try:
                with self._counted(worker):
                    return ray.get(self._send(worker, call))
            except _GONE as error:
                self._pass_over(worker, (left, others), error)

    async def aio(self, *args: Any, **kwargs: Any) -> Any:
        """The same for callers in an event loop."""
        call = (args, kwargs)
        if self._remote:
            return await self._at_endpoint(call)
        if not self._routed:
            references, collect = self._start(call)
            return collect(list(await asyncio.gather(*references)))
        left, others = self._in_turn(call)
        while True:
            worker = self._least_loaded(left or others)
            try:
                with self._counted(worker):
                    return await self._send(worker, call)
            except _GONE as error:
                self._pass_over(worker, (left, others), error)

    @property
    def _remote(self) -> bool:
        """An endpoint runs it."""
        return self._declared.url is not None and self._declared.attribute is None

    @property
    def _routed(self) -> bool:
        """One worker of a class runs each call."""
        return self._declared.affinity is not None and self._declared.mode is None

    def _start(self, call: Call) -> tuple[list[Any], Collect]:
        """Start a call; references to all results, and what makes one value of these."""
        mode = self._declared.mode or MODES["execute_all"]
        routed = self._declared.affinity is not None
        workers = self._candidates(call) if routed else self._workers
        ranks = min(self._ranks, len(workers)) if mode.by_rank else len(workers)
        width = len(workers) // ranks if ranks else 1
        calls = mode.dispatch(ranks, *call)
        references = [
            self._send(worker, each)
            for rank, each in enumerate(calls)
            for worker in workers[rank * width : (rank + 1) * width]
        ]
        return references, lambda results: mode.collect(results[::width])

    def _send(self, worker: "WorkerHandle", call: Call) -> Any:
        return getattr(worker.actor, self.__name__).remote(*call[0], **call[1])

    def _candidates(self, call: Call) -> "list[WorkerHandle]":
        """Workers of the class that the call's domain is mapped to; where there are none, those
        that were granted in its place; otherwise all."""
        affinity = self._declared.affinity or {}
        domain = domain_of(self._declared, call)
        wanted = affinity.get(domain, affinity.get(DEFAULT))
        alive = [w for w in self._workers if w.name not in self._gone] or list(self._workers)
        of_class = [w for w in alive if w.placement.granted == wanted]
        instead = [w for w in alive if any(r.resource == wanted for r in w.placement.requests)]
        return of_class or instead or alive

    def _least_loaded(self, workers: "Sequence[WorkerHandle]") -> "WorkerHandle":
        return min(workers, key=lambda worker: self._in_flight.get(worker.name, 0))

    @contextmanager
    def _counted(self, worker: "WorkerHandle") -> Iterator[None]:
        self._in_flight[worker.name] = self._in_flight.get(worker.name, 0) + 1
        try:
            yield
        finally:
            self._in_flight[worker.name] -= 1

    def _in_turn(self, call: Call) -> "tuple[list[WorkerHandle], list[WorkerHandle]]":
        """Workers to ask first, and those to ask where none of them can be reached."""
        first = self._candidates(call)
        return first, [w for w in self._workers if w not in first and w.name not in self._gone]

    def _pass_over(
        self,
        worker: "WorkerHandle",
        in_turn: "tuple[list[WorkerHandle], list[WorkerHandle]]",
        error: Exception,
    ) -> None:
        """A worker cannot be reached: this call asks it no more, and others neither if it died.

        Raises:
            RayError: nobody is left.
        """
        for workers in in_turn:
            if worker in workers:
                workers.remove(worker)
        if isinstance(error, ray.exceptions.ActorDiedError):
            self._gone.add(worker.name)
        if not any(in_turn):
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
    """None where Python knows no signature."""
    try:
        signature = inspect.signature(method)
    except ValueError:
        return None
    # Ray adds a parameter of its own to the methods of a class that it makes actors of.
    own = [p for p in signature.parameters.values() if not p.name.startswith("_ray")]
    return signature.replace(parameters=own[1:])

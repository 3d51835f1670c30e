"""Staff: the workers of one kind that a proxy uses, and what becomes of those that are lost.

The invariant: a worker that is lost gets no request until it, or who takes its place, serves again;
who waits for one waits only as long as one may come back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from rollart_flow.control.inference.routing import Affinity, Router
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import Emit, Inference
from rollart_flow.errors import EngineError

Recover = Callable[[Inference], Awaitable[Sequence[Inference]]]
"""Told a worker that was lost; returns once those serve the current version that take its place:
itself, or others. None where nobody ever will; EngineError counts as that."""


class WorkerPool:
    """Workers that serve the same requests.

    Args:
        workers: those in use at first.
        emit: where fallbacks and lost workers are reported.
        affinity: says which hardware class a domain goes to.
        recover: brings lost workers back; by default they stay lost.
    """

    def __init__(
        self,
        workers: Iterable[Inference],
        emit: Emit,
        affinity: Affinity,
        recover: Recover | None,
    ) -> None:
        self.router = Router(workers, emit, affinity)
        self._recover = recover
        self._recovering: dict[str, asyncio.Task[None]] = {}
        self._recovered = Signal()
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def hopeless(self) -> bool:
        """Whether no worker is in use and none may come back."""
        return not len(self.router) and not self._recovering

    async def awaited(self, who: str) -> None:
        """Return once a worker is in use, or none may come back; `who` waits."""
        while not len(self.router) and self._recovering:
            with waiting(f"a worker for {who}"):
                await self._recovered.wait()

    def lost(self, worker: Inference, error: Exception) -> None:
        """Leave a worker that died, or left as it was told to, and start to bring it back, unless
        that is under way or it is back already."""
        self.router.lost(worker, error)
        name = worker.worker
        if self._recover is None or name in self._recovering or name in self.router:
            return
        self._recovering[name] = asyncio.ensure_future(self._recovery(self._recover, worker))

    async def _recovery(self, recover: Recover, worker: Inference) -> None:
        try:
            with suppress(EngineError), waiting(f"recovery of {worker.worker}"):
                for each in await recover(worker):
                    self.router.add(each)
        finally:
            del self._recovering[worker.worker]
            self._recovered.notify()

    def abort(self, worker: Inference, request_id: str) -> None:
        """Tell a worker that a request is not wanted, without waiting for it."""
        task = asyncio.ensure_future(_abort(worker, request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def close(self) -> None:
        """Give recoveries up and wait for aborts that are under way."""
        recoveries = tuple(self._recovering.values())
        for task in recoveries:
            task.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)
        while self._aborts:
            with waiting("aborts"):
                await asyncio.wait(self._aborts)


async def _abort(worker: Inference, request_id: str) -> None:
    # A dead worker has nothing left to abort.
    with suppress(EngineError):
        await worker.abort(request_id)

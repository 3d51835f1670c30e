"""WorkerPool: the workers of one kind that a proxy uses, and the recovery of lost workers.

The invariant: a lost worker gets no request until it serves again; a request waits for a worker
only as long as the worker or a replacement may come back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from rollart_flow.control.inference.routing import Affinity, Router
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import Emit, Inference
from rollart_flow.errors import EngineError

Recover = Callable[[Inference], Awaitable[Sequence[Inference]]]
"""Callback for a lost worker that waits for recovery and returns the workers that serve the current
version in its place: the worker itself, or others. An empty result or an EngineError means that the
worker stays lost."""


class WorkerPool:
    """Workers that serve the same requests.

    Args:
        workers: initial workers.
        emit: receives events for fallbacks and lost workers.
        affinity: hardware class for each domain.
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
        """Return once a worker is in use, or none may come back; `who` names the waiter."""
        while not len(self.router) and self._recovering:
            with waiting(f"a worker for {who}"):
                await self._recovered.wait()

    def lost(self, worker: Inference, error: Exception) -> None:
        """Stop using a worker that died or left, and start its recovery.

        Recovery is not started if it is in progress or the worker is back already.
        """
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
        """Abort a request on a worker, without waiting."""
        task = asyncio.ensure_future(_abort(worker, request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def close(self) -> None:
        """Cancel the recovery of workers and wait for pending aborts."""
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

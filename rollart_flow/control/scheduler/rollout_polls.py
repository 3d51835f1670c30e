"""RolloutPolls: the calls in which rollout workers wait for their orders.

The invariants: no call waits longer than `POLL_S`, so that calls of processes that have ended do
not accumulate; a rollout worker that has not called for `LOST_S` is reported as lost, once. When
the run ends, rollout workers are told to call no more, so that no call is left to be repeated.
"""

import asyncio

from rollart_flow.control.protocols import END, Order
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.timeouts import timeout

POLL_S = 20.0
"""Longest time that a call waits for orders [s]."""
LOST_S = 60.0
"""Time without a call after which a rollout worker is lost [s]."""


class RolloutPolls:
    """Bounds the calls of rollout workers to a scheduler, and reports those that call no more."""

    def __init__(self, scheduler: RolloutScheduler) -> None:
        self._scheduler = scheduler
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # A dict keeps the order of arrival; the order of a set would not be reproducible.
        self._waiting: dict[asyncio.Timeout, None] = {}
        self._closed = False

    async def orders(self, worker: str, after: int) -> tuple[int, tuple[Order, ...]]:
        """Wait for a rollout worker's orders past the cursor, but no longer than `POLL_S`.

        Returns:
            (new cursor, orders, of which there may be none); the cursor `END` once `close`
            was called and nothing is left to read.

        Raises:
            UnknownClientError: see `control.protocols.Admission.orders`.
        """
        limit = timeout(0.0 if self._closed else POLL_S)
        self._waiting[limit] = None
        try:
            async with limit:
                return await self._scheduler.orders(worker, after)
        except TimeoutError:
            return (END if self._closed else after), ()
        finally:
            del self._waiting[limit]
            if not self._closed:
                self._expect(worker)

    def _expect(self, worker: str) -> None:
        """Wait anew for the next call of a rollout worker."""
        if (timer := self._timers.pop(worker, None)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[worker] = loop.call_later(LOST_S, self._lost, worker)

    def _lost(self, worker: str) -> None:
        del self._timers[worker]
        self._scheduler.rollout_worker_lost(worker)

    def close(self) -> None:
        """Expect no more calls, and let those that wait return."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        for limit in self._waiting:
            if not limit.expired():
                limit.reschedule(now)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

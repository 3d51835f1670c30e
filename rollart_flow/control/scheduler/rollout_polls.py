"""RolloutPolls: the calls in which rollout workers wait for their cancellations.

The invariants: no call waits longer than `POLL_S`, so that calls of processes that have ended do
not accumulate; a rollout worker that has not called for `LOST_S` is reported as lost, once.
"""

import asyncio

from rollart_flow.control.protocols import Cancellation
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler

POLL_S = 20.0
"""Longest time that a call waits for cancellations [s]."""
LOST_S = 60.0
"""Time without a call after which a rollout worker is lost [s]."""


class RolloutPolls:
    """Bounds the calls of rollout workers to a scheduler, and reports those that call no more."""

    def __init__(self, scheduler: RolloutScheduler) -> None:
        self._scheduler = scheduler
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def cancellations(self, worker: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """Wait for a rollout worker's cancellations past the cursor, but no longer than `POLL_S`.

        Returns:
            (new cursor, cancellations, of which there may be none).

        Raises:
            UnknownClientError: see `control.protocols.Admission.cancellations`.
        """
        try:
            async with asyncio.timeout(POLL_S):
                return await self._scheduler.cancellations(worker, after)
        except TimeoutError:
            return after, ()
        finally:
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
        """Expect no more calls."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

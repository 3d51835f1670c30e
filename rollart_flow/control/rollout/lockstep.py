"""Lockstep: batch-level rollout of one process, the baseline for asynchronous rollout.

Two barriers, each by itself or both. Turns: where a batch of environments steps together, every
turn takes as long as the slowest of them (Sync in ROLLART sections 6.1 and 7.1). Ends: nothing is
scored before the whole batch has ended (batch rollout in ROLL Flash section 5.1.1). The invariant:
with the first no attempt begins a turn while another one that runs is still in the turn before,
with the second none leaves before all have ended.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from rollart_flow.control.loop.waits import waiting

T = TypeVar("T")


class Lockstep:
    """Barriers between the attempts that run concurrently.

    Args:
        turns: attempts wait for one another before each turn.
        ends: attempts wait for one another once they have ended.
    """

    def __init__(self, *, turns: bool = True, ends: bool = True) -> None:
        self._turns = turns
        self._ends = ends
        self._running = 0
        self._ready: list[asyncio.Future[None]] = []
        self._ended: list[asyncio.Future[None]] = []

    async def turn(self) -> None:
        """Wait until every running attempt is about to begin its next turn."""
        if self._turns:
            await self._stand(self._ready, "the turns of the other attempts")

    async def run(self, attempt: Awaitable[T]) -> T:
        """Run an attempt and return its result; with `ends`, wait for all concurrent attempts."""
        self._running += 1
        try:
            result = await attempt
        finally:
            self._running -= 1
            self._release()
        if self._ends:
            await self._stand(self._ended, "the ends of the other attempts")
        return result

    async def _stand(self, row: list[asyncio.Future[None]], name: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        row.append(place)
        self._release()
        try:
            with waiting(name):
                await place
        finally:
            if place in row:  # interrupted: the others do not wait for it
                row.remove(place)
                self._release()

    def _release(self) -> None:
        """Check the barriers again after the callbacks that are already scheduled."""
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self._ready and len(self._ready) == self._running:
            _let_go(self._ready)
        if self._running == 0:
            _let_go(self._ended)


def _let_go(row: list[asyncio.Future[None]]) -> None:
    places = list(row)
    row.clear()
    for place in places:
        if not place.done():
            place.set_result(None)

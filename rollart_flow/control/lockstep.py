"""Attempts of one host in lockstep: the batch-level rollout that asynchrony is measured against.

ROLLART section 7.1 (Sync) and 6.1: where a batch of environments steps together, every turn takes
as long as the slowest of them, and nothing is scored before the whole batch has ended. The
invariant: no attempt begins a turn while another one that runs is still in the turn before, and
none leaves before all have ended.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from rollart_flow.control.waits import waiting

T = TypeVar("T")


class Lockstep:
    """A barrier before each turn, and one at the end, for whoever runs at the time."""

    def __init__(self) -> None:
        self._running = 0
        self._ready: list[asyncio.Future[None]] = []
        self._ended: list[asyncio.Future[None]] = []

    async def turn(self) -> None:
        """Wait until every attempt that runs stands before its next turn."""
        await self._stand(self._ready, "the turns of the other attempts")

    async def run(self, attempt: Awaitable[T]) -> T:
        """Run an attempt; its result, once all attempts beside it have ended."""
        self._running += 1
        try:
            result = await attempt
        finally:
            self._running -= 1
            self._release()
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
        """Look again once all that happens at this moment has happened."""
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

"""One replica of a Ray Serve application: a message of calls in, a stream of answers out.

Invariant: an answer waits for no other call of its message; all that are there travel together.
"""

import asyncio
from collections.abc import AsyncIterator

from rollart_flow.rewards.base import RewardFunction
from rollart_flow.serverless.endpoint import Endpoint
from rollart_flow.serverless.scaling import CALLS
from rollart_flow.serverless.transports.coalesced import Answers


class RewardReplica:
    """Evaluates up to `max_concurrent` calls at a time, of whatever messages."""

    def __init__(self, function: RewardFunction, max_concurrent: int) -> None:
        """Start nothing yet."""
        self._endpoint = Endpoint(function, max_concurrent=max_concurrent)
        self._max_concurrent = max_concurrent
        self._calls = 0
        """Received and not answered."""

    async def answers(self, calls: list[bytes]) -> AsyncIterator[Answers]:
        """The answers to a message; each item has all that came since the one before."""
        answered: list[tuple[int, bytes]] = []
        some = asyncio.Event()

        async def answer(place: int, body: bytes) -> None:
            answered.append((place, await self._endpoint(body)))
            some.set()

        running = [asyncio.ensure_future(answer(*call)) for call in enumerate(calls)]
        left = len(calls)
        self._calls += left
        try:
            while left:
                await some.wait()
                some.clear()
                item, answered[:] = answered[:], []
                self._calls -= len(item)
                left -= len(item)
                yield self._max_concurrent, item
        finally:
            self._calls -= left
            for each in running:
                each.cancel()

    def record_autoscaling_stats(self) -> dict[str, int]:
        """What Ray Serve asks for and gives to `scaling.replicas_for_calls`."""
        return {CALLS: self._calls}

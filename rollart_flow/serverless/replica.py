"""One replica of a Ray Serve application: a message of calls in, a stream of answers out.

An item of the stream costs the caller some 2 ms of CPU, so answers that come within `GATHER_S`
travel together.

Invariant: an answer waits for no other call of its message longer than that.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial

from rollart_flow.rewards.base import RewardFunction
from rollart_flow.serverless.endpoint import Endpoint
from rollart_flow.serverless.scaling import CALLS
from rollart_flow.serverless.transports.coalesced import GATHER_S, Answers


class RewardReplica:
    """Evaluates up to `max_concurrent` calls at a time, of whatever messages."""

    def __init__(self, function: RewardFunction, max_concurrent: int) -> None:
        """Start nothing yet."""
        self._endpoint = Endpoint(function, max_concurrent=max_concurrent)
        self._max_concurrent = max_concurrent
        self._calls = 0
        """Received and not answered."""

    async def answers(self, calls: list[bytes]) -> AsyncGenerator[Answers, None]:
        """The answers to a message, in items of some that come within `GATHER_S`."""
        answered: list[tuple[int, bytes]] = []
        some, rest = asyncio.Event(), asyncio.Event()

        def add(place: int, answer: asyncio.Future[bytes]) -> None:
            answered.append((place, answer.result()))
            some.set()
            if len(answered) == left:
                rest.set()

        left = len(calls)
        self._calls += left
        for place, body in enumerate(calls):
            self._endpoint.begin(body).add_done_callback(partial(add, place))
        try:
            while left:
                await some.wait()
                with suppress(TimeoutError):
                    await asyncio.wait_for(rest.wait(), GATHER_S)
                some.clear()
                item, answered[:] = answered[:], []
                self._calls -= len(item)
                left -= len(item)
                yield self._max_concurrent, item
        finally:
            self._calls -= left  # those that were given up are evaluated all the same

    def record_autoscaling_stats(self) -> dict[str, int]:
        """What Ray Serve asks for and gives to `scaling.replicas_for_calls`."""
        return {CALLS: self._calls}

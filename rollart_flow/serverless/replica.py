"""One replica of a Ray Serve application, which receives messages of calls and streams the answers.

An item of the stream costs the caller about 2 ms of CPU, so answers that arrive within `GATHER_S`
are sent together.

Invariant: an answer waits at most `GATHER_S` for other calls of its message.
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
    """A replica that evaluates up to `max_concurrent` calls at a time, of any messages."""

    def __init__(
        self, function: RewardFunction, max_concurrent: int, environ: tuple[str, ...] = ()
    ) -> None:
        self._endpoint = Endpoint(function, max_concurrent=max_concurrent, environ=environ)
        self._max_concurrent = max_concurrent
        self._calls = 0
        """Number of calls received but not answered."""

    async def answers(self, calls: list[bytes]) -> AsyncGenerator[Answers, None]:
        """Yield the answers to a message, grouped by arrival within `GATHER_S`."""
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
            self._calls -= left  # abandoned calls are still evaluated

    def record_autoscaling_stats(self) -> dict[str, int]:
        """Return the statistics that Ray Serve passes to `scaling.replicas_for_calls`."""
        return {CALLS: self._calls}

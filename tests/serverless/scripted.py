"""Endpoints whose answers, and their times, are known beforehand."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from rollart_flow.errors import EndpointTroubleError, ServerlessError
from rollart_flow.serverless.caller import Caller
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports import Transport

Reply = Callable[[], Coroutine[Any, Any, bytes]]


class Scripted(Transport):
    """An endpoint whose n-th request has a known fate; it writes down when each came and went.

    A port of the test, as the engines and environments of the control plane's tests are: what is
    tested is when requests are sent, which no real endpoint could say to the second.
    """

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.sent: list[float] = []
        self.cancelled: list[float] = []

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        now = asyncio.get_running_loop().time
        self.sent.append(now())
        reply = self.replies[min(len(self.sent), len(self.replies)) - 1]
        try:
            async with asyncio.timeout(timeout_s):
                return await reply()
        except TimeoutError:
            raise EndpointTroubleError("no answer") from None
        except asyncio.CancelledError:
            self.cancelled.append(now())
            raise


def answers(body: bytes, after_s: float = 0.0) -> Reply:
    async def reply() -> bytes:
        await asyncio.sleep(after_s)
        return body

    return reply


def fails(retry_after_s: float = 0.0) -> Reply:
    async def reply() -> bytes:
        raise EndpointTroubleError("status 503", retry_after_s)

    return reply


async def refuses() -> bytes:
    raise ServerlessError("status 404")


async def breaks() -> bytes:
    raise KeyError("bug")


async def hangs() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


class Longest(Random):
    """Draws the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


def caller(transport: Transport, **policy: Any) -> Caller:
    settings: dict[str, Any] = {
        "breaker_failures": 1000, "hedge_after_s": None, "backoff_s": 1.0, "deadline_s": 3600.0
    }  # fmt: skip
    return Caller(transport, CallPolicy(**{**settings, **policy}), Longest())

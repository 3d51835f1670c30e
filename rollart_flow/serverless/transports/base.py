"""What a transport is: bytes there, bytes back, within a time.

Invariant: what goes wrong on the way is an `EndpointTroubleError` where another try may succeed,
and a `ServerlessError` where it cannot; nothing else leaves a transport.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollart_flow.errors import EndpointTroubleError, ServerlessError
from rollart_flow.serverless.contract import WARM, encode

_WARM_S = 60.0
"""Longest time that an endpoint takes to start."""


class Transport(ABC):
    """The way to one endpoint. Used by one event loop."""

    @abstractmethod
    async def send(self, body: bytes, timeout_s: float) -> bytes:
        """The endpoint's answer to a message of the contract.

        Raises:
            EndpointTroubleError: no answer within `timeout_s` seconds, or none now.
            ServerlessError: the endpoint refuses, for good.
        """

    async def warm(self, count: int) -> None:
        """Have `count` calls' worth of the endpoint ready; trouble is left to the calls."""
        asked = (self.send(encode(WARM), _WARM_S) for _ in range(count))
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, ServerlessError):
                raise answer

    async def close(self) -> None:  # noqa: B027  a transport may hold nothing
        """Give up what it holds. May be called twice."""


@asynccontextmanager
async def limited(timeout_s: float) -> AsyncIterator[None]:
    """Turn the end of the time into the transport's own error."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise EndpointTroubleError(f"no answer within {timeout_s:g} s") from None

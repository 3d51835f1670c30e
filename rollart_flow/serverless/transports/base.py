"""The base class of transports, which exchange bytes with an endpoint within a time limit.

Invariant: a transport raises `EndpointTroubleError` if a retry may succeed and `ServerlessError` if
it cannot; it raises no other error.

To add a transport: its module, and its URL scheme and `TransportVariant` in `transports.registry`.
A package adds one through an entry point of the group `rollart_flow.reward_transports`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollart_flow.errors import EndpointTroubleError, ServerlessError
from rollart_flow.registry import Requirement
from rollart_flow.serverless.contract import WARM, encode
from rollart_flow.timeouts import timeout

_WARM_S = 60.0
"""Maximum time in seconds for an endpoint to start."""


class Transport(ABC):
    """A transport to one endpoint. Used by one event loop."""

    @abstractmethod
    async def send(self, body: bytes, timeout_s: float) -> bytes:
        """Return the endpoint's answer to a message of the contract.

        Raises:
            EndpointTroubleError: no answer arrived within `timeout_s` seconds, or the endpoint is
            temporarily unavailable.
            ServerlessError: the endpoint refused the message permanently.
        """

    async def warm(self, count: int) -> None:
        """Prepare the endpoint for `count` concurrent calls, to which its errors are left."""
        asked = (self.send(encode(WARM), _WARM_S) for _ in range(count))
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, ServerlessError):
                raise answer

    async def close(self) -> None:  # noqa: B027  a transport may hold no resources
        """Release the resources of the transport. May be called twice."""


@dataclass(frozen=True, slots=True)
class TransportVariant:
    """The description of a transport, which a URL scheme names."""

    opener: str
    """`module:function`, imported at the first call and called with a URL and a `CallPolicy`; it
    returns a `Transport` and raises SettingsError for a wrong URL."""
    example: str
    """A valid URL, for error messages."""
    requirements: tuple[Requirement, ...] = ()


@asynccontextmanager
async def limited(timeout_s: float) -> AsyncIterator[None]:
    """Limit a block to `timeout_s` seconds and convert its timeout to EndpointTroubleError."""
    try:
        async with timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise EndpointTroubleError(f"no answer within {timeout_s:g} s") from None

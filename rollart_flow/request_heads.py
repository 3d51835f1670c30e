"""A limit on the time and the length of a request's head, for the protocols of uvicorn.

uvicorn itself waits for ever for the first request of a connection, and for the rest of a head.
"""

import asyncio
from typing import TYPE_CHECKING, Any

HEAD_S = 10.0
"""Longest time until the head of a request is complete [s]."""
LONGEST_HEAD_BYTES = 64 << 10
"""Longest head of a request."""

if TYPE_CHECKING:

    class _Protocol(asyncio.Protocol):
        """The methods that uvicorn's protocols for HTTP have in common."""

        cycle: Any
        loop: asyncio.AbstractEventLoop
        transport: asyncio.Transport

else:
    _Protocol = object


class HeadLimit(_Protocol):
    """Closes a connection whose next head is not complete in `HEAD_S` seconds, or is too long.

    It stands before a protocol of uvicorn among the bases of a class.
    """

    _head_limit: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._limit_head(0)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_head(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def _limit_head(self, received: int) -> None:
        """Start the limit unless it runs already; end it while a request is answered."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._end_limit()
            return
        if self._head_limit is None:
            self._head_limit = self.loop.call_later(HEAD_S, self.transport.close)
        if cycle is None or not cycle.more_body:
            self._head_bytes += received
            if self._head_bytes > LONGEST_HEAD_BYTES:
                self.transport.close()

    def _end_limit(self) -> None:
        self._head_bytes = 0
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None

"""Settings of uvicorn for a reward server, and a limit on the time to send the head of a request.

uvicorn itself waits for ever for the first request of a connection, and for the rest of a head.
"""

import asyncio
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.applications import Starlette

HEAD_S = 10.0
"""Longest time until the head of a request is complete [s]."""
CONNECTIONS = 512
"""Most open connections; further ones are answered with status 503, which clients repeat."""

_GRACE_S = 5
"""Grace period in seconds for running calls when the server stops; remaining calls are then cut
off."""


class ImpatientProtocol(H11Protocol):
    """Closes a connection that does not send the head of a request within `HEAD_S` seconds."""

    _head_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_limit()
        super().connection_lost(exc)

    def _limit_head(self) -> None:
        """Start the limit unless it runs already; end it while a request is answered."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._end_limit()
        elif self._head_limit is None:
            self._head_limit = self.loop.call_later(HEAD_S, self.transport.close)

    def _end_limit(self) -> None:
        if self._head_limit is not None:
            self._head_limit.cancel()
            self._head_limit = None


def server_for(app: "Starlette") -> uvicorn.Server:
    """Create a server that limits connections and the time of each request's head."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=ImpatientProtocol,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return uvicorn.Server(config)

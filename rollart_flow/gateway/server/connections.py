"""ClientConnection: what the end of a connection says about the answer that was sent on it.

HTTP has no receipt. A client that keeps its connections, as HTTP/1.1 has it, and ends one as soon
as an answer was sent may not have read it.
"""

from collections.abc import Callable

from starlette.requests import Request

UNREAD_S = 1.0
"""Time after an answer in which the end of its connection raises a doubt [s]; an idle connection
is kept for longer."""
_NAME = "connection"


class ClientConnection:
    """One connection of a client, which has one request at a time."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the connection has ended."""
        self._answered_at = 0.0
        self._unread: Callable[[], None] | None = None

    def begin(self) -> None:
        """Note that a request begins: the client has read the answer before."""
        self._unread = None

    def answered(self, now: float, unread: Callable[[], None]) -> None:
        """Note that an answer was sent.

        Args:
            now: time of the loop [s].
            unread: called if the connection ends right after it.
        """
        self._answered_at, self._unread = now, unread

    def end(self, now: float) -> None:
        """Note that the connection has ended, at a time of the loop [s]."""
        self.ended = True
        unread, self._unread = self._unread, None
        if unread is not None and now - self._answered_at <= UNREAD_S:
            unread()


def with_connection(state: dict[str, object], connection: ClientConnection) -> dict[str, object]:
    """Return the state of the requests of a connection."""
    return {**state, _NAME: connection}


def connection_of(request: Request) -> ClientConnection:
    """Return the connection of a request that its client keeps; otherwise one that never ends."""
    found = request.scope.get("state", {}).get(_NAME)
    kept = "close" not in request.headers.get("connection", "").lower()
    if kept and request.scope.get("http_version") != "1.0" and isinstance(found, ClientConnection):
        return found
    return ClientConnection()

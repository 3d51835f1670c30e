"""Reading of a request's host and body, before a wire sees it.

The invariant: a body is read only for a client with a key of an open session, never beyond the
limit, and never for longer than `BODY_S`.
"""

from types import TracebackType
from typing import Self

from starlette.requests import Request

from rollart_flow.gateway.core.calls import CallRefusedError, Refusal
from rollart_flow.request_hosts import host_name, is_loopback
from rollart_flow.timeouts import timeout

LONGEST_BODY_BYTES = 32 << 20
"""Longest body of a request."""
SESSION_BYTES = 512 << 20
"""Most bytes of all bodies of one session, which keeps what its calls say."""
BODY_S = 60.0
"""Longest time from the head of a request to the end of its body [s]."""


class HttpRefusedError(CallRefusedError):
    """A request that is refused with a status of its own, whatever its wire.

    Args:
        status: status of HTTP.
        message: what is wrong, in one line.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(Refusal.INVALID, message)
        self.status = status


def check_host(request: Request) -> None:
    """Refuse a request over TCP that does not name this machine's loopback as its host.

    A page in a browser of this machine reaches loopback; after it rebinds its own name to it, the
    name in its requests is still its own.

    Raises:
        HttpRefusedError: the host is another one.
    """
    server = request.scope.get("server")
    if server is not None and server[1] is None:
        return  # a Unix socket, which no page reaches
    host = request.headers.get("host", "")
    if not is_loopback(host_name(host)):
        raise HttpRefusedError(421, f"the host is {host[:80]!r}; address this server by localhost")


class BodyBudget:
    """Limits on what the requests of one session send, since the program that sends may be hostile.

    Args:
        at_once: most bytes of bodies of requests under way.
        in_all: most bytes of all bodies; None for any number.
    """

    def __init__(self, at_once: int, in_all: int | None) -> None:
        self._at_once, self._in_all = at_once, in_all
        self._under_way = self._received = 0

    def take(self, received: int) -> None:
        """Count bytes that a request has sent.

        Raises:
            CallRefusedError: there are too many, at once or in all.
        """
        self._under_way += received
        self._received += received
        if self._in_all is not None and self._received > self._in_all:
            said = f"the requests of this session have more than {self._in_all} bytes together"
            raise CallRefusedError(Refusal.TOO_LARGE, said, limit=self._in_all)
        if self._under_way > self._at_once:
            said = f"requests under way have more than {self._at_once} bytes; try again"
            raise CallRefusedError(Refusal.BUSY, said, limit=self._at_once)

    def give_back(self, received: int) -> None:
        """Count bytes of a request that has ended."""
        self._under_way -= received


class RequestBody:
    """The body of one request, as a context that counts its bytes while it goes on.

    Args:
        request: the request.
        budget: budget of its session.
        limit: most bytes.
    """

    def __init__(self, request: Request, budget: BodyBudget, limit: int) -> None:
        self._request, self._budget, self._limit = request, budget, limit
        self._received = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._budget.give_back(self._received)

    async def read(self) -> bytes:
        """Return the body.

        Raises:
            CallRefusedError: it is longer than the limit or than the budget, or takes longer than
                `BODY_S`.
            ClientDisconnect: the client left.
        """
        try:
            async with timeout(BODY_S):
                return await self._read()
        except TimeoutError:
            raise HttpRefusedError(408, f"no whole body within {BODY_S:g} s") from None

    async def _read(self) -> bytes:
        limit = self._limit
        too_large = CallRefusedError(
            Refusal.TOO_LARGE, f"the body has more than {limit} bytes", limit=limit
        )
        length = self._request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise too_large
        pieces = []
        async for piece in self._request.stream():
            pieces.append(piece)
            self._received += len(piece)
            self._budget.take(len(piece))
            if self._received > limit:
                raise too_large
        return b"".join(pieces)

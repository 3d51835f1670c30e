"""Checks of a request to a reward server, and the time that a connection has.

A page in a browser of this machine can send requests to a server on loopback. Therefore a request
must name JSON as its content, which a browser asks permission for first, and an address of the
server as its Host, which a page that rebinds its own name cannot.
"""

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.request_hosts import host_name, is_address
from rollart_flow.secret import Secret
from rollart_flow.timeouts import timeout

if TYPE_CHECKING:
    from starlette.requests import Request

LONGEST_BODY_BYTES = 64 << 20
"""Largest request body; a trajectory of a million tokens has about 30 MB."""
BODY_S = 30.0
"""Longest time from the head of a request to the end of its body [s]."""


class RefusedError(Exception):
    """A request that is not answered by the endpoint."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """The rules of one server."""

    token: Secret | None
    """Bearer token that every request must carry; None admits requests without one."""
    hosts: frozenset[str]
    """Names, besides localhost and IP addresses, by which clients may address the server."""

    @classmethod
    def of(cls, token: Secret | None, hosts: Collection[str]) -> "RequestChecks":
        return cls(token, frozenset({"localhost", *(host.lower() for host in hosts)}))

    async def body(self, request: "Request") -> bytes:
        """Return the body of an admitted request. Raises RefusedError."""
        self._check(request)
        try:
            async with timeout(BODY_S):
                return await _read(request)
        except TimeoutError:
            raise RefusedError(408, f"no whole body within {BODY_S:g} s") from None

    def _check(self, request: "Request") -> None:
        headers = request.headers
        name = host_name(headers.get("host", ""))
        if not (name in self.hosts or is_address(name)):
            hint = "serve with this name in `hosts`, or --allow-host"
            raise RefusedError(421, f"the server does not answer for host {name[:80]!r}; {hint}")
        if self.token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            wanted = self.token.reveal().encode()
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), wanted):
                raise RefusedError(401, "the bearer token is missing or wrong")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(415, "the content type must be application/json")


async def _read(request: "Request") -> bytes:
    too_long = RefusedError(413, f"the body has more than {LONGEST_BODY_BYTES} bytes")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > LONGEST_BODY_BYTES:
        raise too_long
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_BODY_BYTES:
            raise too_long
    return bytes(body)

"""ResponseSender: the response to one request, in whole or in pieces."""

from collections.abc import Mapping

from starlette.types import Send

from rollart_flow.gateway.wires.base import JSON_HEADERS, JsonObject, WireReply
from rollart_flow.gateway.wires.events import json_bytes
from rollart_flow.timeouts import timeout

SEND_S = 60.0
"""Longest time for which a client may take nothing of its answer [s]."""


class ClientLeftError(Exception):
    """The client hung up, or takes nothing of its answer."""


class ResponseSender:
    """Sends one response.

    Args:
        send: sends to the client, as ASGI has it.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False
        """Whether status and headers are sent."""

    async def json(self, value: JsonObject) -> None:
        """Send a whole answer."""
        await self.reply(WireReply(200, JSON_HEADERS, json_bytes(value)))

    async def reply(self, reply: WireReply) -> None:
        """Send a whole response.

        Raises:
            ClientLeftError: the client takes nothing.
        """
        length = {"content-length": str(len(reply.body))}
        await self.begin(reply.status, {**reply.headers, **length})
        await self.body(reply.body)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.begun = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def body(self, body: bytes, *, more: bool = False) -> None:
        """Send a piece of the body, the last one unless there is more.

        Raises:
            ClientLeftError: the client takes nothing.
        """
        try:
            async with timeout(SEND_S):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            raise ClientLeftError from None

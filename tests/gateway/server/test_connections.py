"""Answers that are lost on their way, on every wire: the same request gets the same answer."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from rollart_flow.gateway.server.gateway_server import GatewayServer
from tests.gateway.core.rig import Rig, ScriptedEngine

HI = [{"role": "user", "content": "Hi."}]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": HI, "stream": True}),
    "responses": ("/v1/responses", {"model": "m", "input": HI, "stream": True}),
    "messages": ("/v1/messages", {"model": "m", "messages": HI, "max_tokens": 99, "stream": True}),
    "google": (
        "/v1beta/models/m:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]},
    ),
}
WIRES = sorted(BODIES)
Talk = Callable[["Stranger"], Any]


class Stranger:
    """A client that sends one body on sockets of its own."""

    def __init__(self, server: GatewayServer, key: str, wire: str) -> None:
        self._where = urlsplit(server.url or "")
        self._key = key
        self._path, self._body = BODIES[wire]
        self._open: list[asyncio.StreamWriter] = []

    async def ask(self, *, leaves: bool = False, header: str = "X: y") -> str:
        """Send the body on a new connection and read the answer; end the connection with it."""
        reader, writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        body = json.dumps(self._body).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._key}"
            f"\r\n{header}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"0\r\n\r\n")
        if leaves:
            writer.close()
            await writer.wait_closed()
        else:
            self._open.append(writer)
        return "first" if b"first answer" in answer else "second"

    async def close(self) -> None:
        for writer in self._open:
            writer.close()
            await writer.wait_closed()


def played(wire: str, talk: Talk) -> tuple[Any, int]:
    """What a client returns, and the number of samples."""
    rig = Rig(ScriptedEngine("first answer", "second answer"))

    async def main() -> Any:
        async with GatewayServer(port=0, unix=False) as server:
            stranger = Stranger(server, server.open(rig.session), wire)
            found = await talk(stranger)
            await stranger.close()
        return found

    found = asyncio.run(main())
    asyncio.run(rig.trajectories())
    return found, len(rig.engine.requests)


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_whose_connection_ends_with_it_is_repeated(wire: str) -> None:
    async def talk(stranger: Stranger) -> list[str]:
        return [await stranger.ask(leaves=True), await stranger.ask()]

    assert played(wire, talk) == (["first", "first"], 1)


@pytest.mark.parametrize("wire", WIRES)
def test_a_client_that_stays_wants_another_sample(wire: str) -> None:
    async def talk(stranger: Stranger) -> list[str]:
        return [await stranger.ask(), await stranger.ask()]

    assert played(wire, talk) == (["first", "second"], 2)


def test_a_client_that_says_that_it_ends_its_connection_wants_another_sample() -> None:
    async def talk(stranger: Stranger) -> list[str]:
        return [await stranger.ask(leaves=True, header="Connection: close") for _ in range(2)]

    assert played("chat", talk) == (["first", "second"], 2)

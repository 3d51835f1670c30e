"""The server on real sockets: where it listens, what clients and strangers get, how it stops."""

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from rollart_flow import request_heads
from rollart_flow.errors import SettingsError
from rollart_flow.gateway.server import requests
from rollart_flow.gateway.server.gateway_server import GatewayServer
from tests.gateway.server.crowd import Talked, talk
from tests.gateway.server.scripted import ScriptedSession, after

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}
LARGE_BYTES = 300_000
"""Size of a body that is parsed in a thread."""


@asynccontextmanager
async def client(server: GatewayServer, key: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client on the Unix socket."""
    transport = httpx.AsyncHTTPTransport(verify=False, uds=str(server.socket))
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://gateway", headers=headers, verify=False
    ) as made:
        yield made


def serving(
    test: Callable[[GatewayServer, str], Awaitable[None]], session: ScriptedSession
) -> None:
    """Run a test against a server with one session."""

    async def main() -> None:
        async with GatewayServer(port=0) as server:
            await test(server, server.open(session))

    asyncio.run(main())


async def raw(server: GatewayServer, sent: bytes) -> bytes:
    """Everything that the server answers on one connection until it closes it."""
    where = urlsplit(server.url or "")
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(sent)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_it_listens_on_loopback_and_on_a_private_socket() -> None:
    async def test(server: GatewayServer, key: str) -> None:
        assert server.url is not None
        assert server.socket is not None
        assert urlsplit(server.url).hostname == "127.0.0.1"
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
        assert len(bytes(server.socket)) < 108
        async with client(server, key) as on_socket:
            assert (await on_socket.post(CHAT, json=BODY)).status_code == 200
        async with httpx.AsyncClient(base_url=server.url) as on_port:
            assert (await on_port.post(CHAT, json=BODY)).status_code == 401
            found = await on_port.post(CHAT, json=BODY, headers={"x-api-key": key})
            assert found.json()["choices"][0]["message"]["content"] == "Hello."

    serving(test, ScriptedSession())


def test_nothing_is_left_after_the_end() -> None:
    async def main() -> None:
        server = GatewayServer(port=0)
        async with server:
            assert server.socket is not None
            folder = server.socket.parent
            port = urlsplit(server.url or "").port
        assert not any((server.url, server.socket))
        assert not folder.exists()
        await server.stop()
        socket.create_server(("127.0.0.1", port or 0)).close()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_it_refuses_to_listen_elsewhere(host: str) -> None:
    with pytest.raises(SettingsError, match="on loopback only"):
        asyncio.run(GatewayServer(port=0, host=host).start())


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"cannot listen on 127\.0\.0\.1:{port}: "):
            asyncio.run(GatewayServer(port=port).start())


def test_large_bodies_are_parsed_in_a_thread_and_larger_ones_refused() -> None:
    session = ScriptedSession()

    async def test(server: GatewayServer, key: str) -> None:
        long = {"model": "m", "messages": [{"role": "user", "content": "x" * LARGE_BYTES}]}
        async with client(server, key) as clients:
            assert (await clients.post(CHAT, json=long)).status_code == 200
            assert len(session.calls[0].messages[0].text) == LARGE_BYTES
            declared = await clients.post(CHAT, content=b"x" * 40_000_000)
            assert declared.status_code == 413

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(40):
                    yield b"x" * 1_000_000

            assert (await clients.post(CHAT, content=pieces())).status_code == 413
            assert (await clients.post(CHAT, json=BODY)).status_code == 200
        assert len(session.calls) == 2

    serving(test, session)


def test_a_stranger_s_body_is_not_read() -> None:
    async def test(server: GatewayServer, key: str) -> None:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
        where = urlsplit(server.url or "")
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        writer.write(head.encode() + b"Authorization: Bearer stranger\r\n\r\n")
        async with asyncio.timeout(60):
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        await writer.wait_closed()

    serving(test, ScriptedSession())


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHost: local"])
def test_a_head_that_stalls_ends_its_connection(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_heads, "HEAD_S", 0.1)

    async def test(server: GatewayServer, key: str) -> None:
        assert await raw(server, sent) == b""

    serving(test, ScriptedSession())


def test_a_head_that_is_too_long_ends_its_connection() -> None:
    async def test(server: GatewayServer, key: str) -> None:
        with pytest.raises(ConnectionError):
            await raw(server, b"POST / HTTP/1.1\r\nX: " + b"x" * 4_000_000)

    serving(test, ScriptedSession())


def test_a_body_that_stalls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BODY_S", 0.1)

    async def test(server: GatewayServer, key: str) -> None:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nX-Api-Key: {key}"
        connection = "\r\nConnection: close\r\n\r\n{"
        answer = await raw(server, (head + connection).encode())
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]

    serving(test, ScriptedSession())


def test_a_connection_that_is_closed_or_half_closed_loses_no_call() -> None:
    session = ScriptedSession(after(0.2))

    async def test(server: GatewayServer, key: str) -> None:
        body = json.dumps(BODY).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        where = urlsplit(server.url or "")
        for half in (False, True):
            _, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(f"{head}X-Api-Key: {key}\r\n\r\n".encode() + body)
            await writer.drain()
            await asyncio.wait_for(session.called.get(), 60)
            if half:
                writer.write_eof()
                await session.tasks[-1]
            writer.close()
            await writer.wait_closed()
        answers = await asyncio.gather(*session.tasks)
        assert [answer.action.text for answer in answers] == ["Hello."] * 2
        await server.stop()
        assert server.counters.hang_ups == 2

    serving(test, session)


def test_a_hundred_agents_at_once_lose_and_double_no_call() -> None:
    assert asyncio.run(talk(rollouts=100, calls=4)) == Talked(lost=0, doubled=0)

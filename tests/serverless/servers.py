"""Web servers on free ports of this machine: a real one for an app, and one that misbehaves."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from rollart_flow.rewards.base import RewardFunction
from rollart_flow.secret import Secret
from rollart_flow.serverless import http_app
from rollart_flow.serverless.listening import server_for


@asynccontextmanager
async def serving(
    function: RewardFunction, token: Secret | None = None, hosts: Collection[str] = ()
) -> AsyncIterator[str]:
    """The URL of a reward function behind uvicorn, in this loop."""
    server = server_for(http_app(function, token=token, hosts=hosts))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.ensure_future(server.serve(sockets=[listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


Handle = Callable[[bytes], Awaitable[bytes]]
"""The body of a request to the raw bytes of a response."""


@asynccontextmanager
async def raw_server(handle: Handle) -> AsyncIterator[str]:
    """The URL of a server whose every response is made by hand."""
    connections: set[asyncio.Task[None] | None] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            writer.write(await handle(await reader.readexactly(length)))
            await writer.drain()
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for task in connections:
        if task is not None:
            task.cancel()
    await asyncio.gather(*(task for task in connections if task), return_exceptions=True)


def response(status: str, body: bytes = b"", *headers: str) -> bytes:
    """A response after which the connection is closed."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body

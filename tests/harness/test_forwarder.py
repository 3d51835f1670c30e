"""The way from a box's loopback to the gateway: it ends where the client's connection breaks."""

import asyncio
import socket
import struct
from pathlib import Path

from rollart_flow.harness import forwarder

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with which the end of a socket is a reset."""


def test_the_gateway_sees_that_a_client_broke_off(tmp_path: Path) -> None:
    """A program that is killed amid an answer leaves unread bytes, so that its end is a reset."""

    async def main() -> bytes:
        ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def gateway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(100))
            ended.set_result(await reader.read())  # until the end
            writer.close()

        path = str(tmp_path / "s")
        behind = await asyncio.start_unix_server(gateway, path)
        before = await asyncio.start_server(
            lambda reader, writer: forwarder._forward(path, reader, writer), "127.0.0.1", 0
        )
        async with behind, before:
            reader, writer = await asyncio.open_connection(*before.sockets[0].getsockname())
            writer.write(b"a question")
            assert await reader.read(100) == b"a question"
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
            async with asyncio.timeout(20):
                return await ended

    assert asyncio.run(main()) == b""

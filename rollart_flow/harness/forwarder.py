"""The program that a box runs around an agent: a way from its loopback to the gateway's socket.

It listens on loopback, starts the agent, passes bytes between its connections and the Unix socket,
and ends with the agent's exit code. It is given to `python3 -c` as a text, needs nothing but the
standard library of Python 3.9, and knows no key.

    python3 -c TEXT PORT SOCKET PROGRAM [ARGUMENT]...
"""

import asyncio
import sys
from contextlib import suppress

_PIECE_BYTES = 1 << 16


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Pass bytes on until their sender has no more, and say so to the receiver.

    Returns False if a connection broke.
    """
    with suppress(ConnectionError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return True
    return False


async def _forward(socket: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Connect a client to the socket, until one of the two has left."""
    try:
        there, back = await asyncio.open_unix_connection(socket)
    except OSError as error:
        print(f"the gateway cannot be reached: {error}", file=sys.stderr)
        writer.close()
        return
    ways = [asyncio.ensure_future(_pass(reader, back)), asyncio.ensure_future(_pass(there, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if ways[0].done() and ways[0].result():  # the client has said all; the answer may come
            await ways[1]
    finally:
        for way in ways:
            way.cancel()
        for end in (writer, back):
            end.close()


async def run(port: int, socket: str, command: "list[str]") -> int:
    """Run a program with the gateway on loopback; return its exit code, 127 if it is not there."""
    server = await asyncio.start_server(
        lambda reader, writer: _forward(socket, reader, writer), "127.0.0.1", port
    )
    try:
        program = await asyncio.create_subprocess_exec(*command)
        return await program.wait()
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return 127
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))

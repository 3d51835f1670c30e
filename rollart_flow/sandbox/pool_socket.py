"""The socket of a pool, at which environments' processes of its node call their boxes (`PoolLine`).

A process is told the path and a key of its attempt when a box is opened for it. The socket is in a
folder that only this user may enter, and takes no connection of another user. The key is a code of
the session by a secret of this process, so that nothing has to be remembered for it.

Invariant: what an attempt holds ends with its connection. A connection that does not begin with a
session and its key, or sends what is no call, is ended.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from rollart_flow.sandbox.box_calls import Message, framed, unframed
from rollart_flow.sandbox.owner import owner_label, sweep_folders
from rollart_flow.sandbox.pool import SandboxPool
from rollart_flow.sandbox.pool_line import LENGTH_BYTES

_log = logging.getLogger(__name__)

_LONGEST_BYTES = 1 << 30
"""Longest frame: a file or an archive, and its call [bytes]."""
_PREFIX = "rollart-pool-"


class PoolSocket:
    """Listens once a process is told of it.

    Args:
        pool: its boxes.
    """

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool
        self._secret = secrets.token_bytes(32)
        self._turn = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._folder: Path | None = None
        self.lines: set[PoolConnection] = set()
        """Connections that have not ended."""

    async def offer(self, session: str) -> Mapping[str, str] | None:
        """Return how a process of this node calls the boxes of a session.

        None if this machine has no place for a socket.
        """
        try:
            async with self._turn:
                path = await self._listen()
        except OSError as error:
            _log.warning("calls of boxes go through Ray: no socket can be made: %s", error)
            return None
        return {"path": path, "session": session, "key": self._key(session)}

    async def close(self) -> None:
        """End all connections, with what their attempts hold, and remove the socket."""
        if self._server is not None:
            self._server.close()
        for line in self.lines:
            line.abort()
        if self.lines:
            await asyncio.wait([line.ended for line in self.lines])
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _listen(self) -> str:
        """Return the path of the socket, which listens."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner_label()}-"))
        path = str(self._folder / "socket")
        if self._server is None:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listening.bind(path)
                os.chmod(path, 0o600)
                loop = asyncio.get_running_loop()
                self._server = await loop.create_unix_server(self._connection, sock=listening)
            except BaseException:
                listening.close()
                raise
        return path

    def _connection(self) -> "PoolConnection":
        return PoolConnection(self._pool, self._key, self.lines)

    def _key(self, session: str) -> str:
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()


class PoolConnection(asyncio.Protocol):
    """The pool's end of a line: a greeting, then calls that are answered one after the other.

    Args:
        pool: answers the calls.
        key: returns the key of a session.
        living: the connections that have not ended.
    """

    def __init__(
        self, pool: SandboxPool, key: Callable[[str], str], living: "set[PoolConnection]"
    ) -> None:
        self._pool = pool
        self._key = key
        self._living = living
        self._received = bytearray()
        self._session: str | None = None
        self._answering: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._living.add(self)
        if _user_of(transport.get_extra_info("socket")) != os.geteuid():
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answering is None:
            self._take()

    def connection_lost(self, error: Exception | None) -> None:
        self._living.discard(self)
        if self._answering is not None:
            self._answering.cancel()
        if self._session is not None:
            self._pool.release(self._session)
        self.ended.set_result(None)

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def _take(self) -> None:
        """Take the next frame if all of it has arrived."""
        if len(self._received) < LENGTH_BYTES:
            return
        end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "big")
        if end > _LONGEST_BYTES:
            self.abort()
        if len(self._received) < end or self._transport.is_closing():
            return
        frame = bytes(memoryview(self._received)[LENGTH_BYTES:end])
        del self._received[:end]
        try:
            message, data = unframed(frame)
            if self._session is None:
                self._greet(message["session"], message["key"])
                return
        except (ValueError, KeyError, TypeError, AttributeError):
            self.abort()
            return
        self._answering = asyncio.create_task(self._answer(self._session, message, data))
        self._answering.add_done_callback(self._answered)

    def _greet(self, session: str, key: str) -> None:
        if hmac.compare_digest(key.encode(), self._key(session).encode()):
            self._session = session
            self._send({"value": None}, b"")
        else:
            self.abort()

    async def _answer(self, session: str, call: Message, data: bytes) -> None:
        self._send(*await self._pool.call(session, call, data))

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering = None
        if task.cancelled() or self._transport.is_closing():
            return
        if (error := task.exception()) is not None:  # what came is no call
            _log.warning("a process sent what is no call of a box: %r", error)
            self.abort()
        else:
            self._take()

    def _send(self, message: Message, data: bytes) -> None:
        frame = framed(message, data)
        self._transport.write(len(frame).to_bytes(LENGTH_BYTES, "big") + frame)


def sweep_sockets() -> None:
    """Remove the folders of pools whose processes have died."""
    sweep_folders(Path(tempfile.gettempdir()), _PREFIX)


def _user_of(connected: socket.socket) -> int:
    """Return the user of the process at the other end."""
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", packed)[1])

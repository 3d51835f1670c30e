"""A proxy between an S3 client and its server that makes faults, request by request.

Bytes pass unchanged, so that signatures stay valid; only the first line of each request is read.
A fault is a function of a request that returns what happens to it.
"""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from urllib.parse import urlsplit

_REQUEST = re.compile(rb"(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n")
_BYTES = 1 << 16
_BUSY = b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>"
_CONTINUE = b"HTTP/1.1 100"


class Action(Enum):
    """What happens to a request."""

    PASS = "pass"
    RESET = "reset"
    """The connection is reset."""
    HOLE = "hole"
    """It is read, and never answered."""
    BUSY = "busy"
    """It is answered with 503, and the server never sees it."""
    LOSE = "lose"
    """The server takes it, and the connection is reset instead of its answer."""
    DELAY = "delay"
    """It reaches the server two seconds late."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that begins."""

    method: str
    path: str


Fault = Callable[[Request], Action]


def always(action: Action) -> Fault:
    """Do the same to all requests."""
    return lambda request: action


def some(share: float, action: Action) -> Fault:
    """Do something to this share of the requests, chosen by a fixed seed."""
    random = Random(0)
    return lambda request: action if random.random() < share else Action.PASS


def only(fault: Fault, method: str = "", path: str = "") -> Fault:
    """Apply a fault to the requests of a method whose path has a part."""

    def chosen(request: Request) -> Action:
        if method not in request.method or path not in request.path:
            return Action.PASS
        return fault(request)

    return chosen


class Proxy:
    """Listens on a port of this machine while its context lasts; a thread of its own serves it.

    Args:
        upstream: URL of the server.
    """

    DELAY_S = 2.0

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self._upstream = (address.hostname or "", address.port or 80)
        self._fault: Fault = always(Action.PASS)
        self.injected = 0
        """Requests to which something was done."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "Proxy":
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        self._server = started.result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextmanager
    def making(self, fault: Fault) -> Iterator[None]:
        """Make a fault for the duration of the context; connections that are open see it too."""
        self._fault = fault
        try:
            yield
        finally:
            self.mend()

    def mend(self) -> None:
        """End the fault."""
        self._fault = always(Action.PASS)

    async def _start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server: asyncio.StreamWriter | None = None
        try:
            answers, server = await asyncio.open_connection(*self._upstream)
            await _Connection(self, client, back, answers, server).run()
        except (OSError, asyncio.CancelledError):
            pass  # either side has gone, or the proxy ends
        finally:
            for writer in (back, server):
                if writer is not None:
                    writer.close()

    def decide(self, first: bytes) -> Action | None:
        """What happens to a request whose first bytes these are; None if none begins here."""
        found = _REQUEST.match(first)
        if found is None:
            return None
        action = self._fault(Request(found[1].decode(), found[2].decode()))
        self.injected += action is not Action.PASS
        return action


class _Connection:
    """The two directions of one connection."""

    def __init__(
        self,
        proxy: Proxy,
        client: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        server: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client, self._back = client, back
        self._answers, self._server = answers, server
        self._lose = False

    async def run(self) -> None:
        """Relay until either side ends, or a fault ends both."""
        tasks = [asyncio.create_task(each()) for each in (self._requests, self._responses)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _requests(self) -> None:
        while data := await self._client.read(_BYTES):
            action = self._proxy.decide(data)
            if action is Action.RESET:
                self._reset()
                return
            if action is Action.BUSY:
                head = f"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: {len(_BUSY)}\r\n"
                self._back.write(head.encode() + b"\r\n" + _BUSY)
                await self._back.drain()
            if action in (Action.BUSY, Action.HOLE):
                while await self._client.read(_BYTES):
                    pass
                return
            if action is Action.DELAY:
                await asyncio.sleep(self._proxy.DELAY_S)
            self._lose = action is Action.LOSE or (action is None and self._lose)
            self._server.write(data)
            await self._server.drain()

    async def _responses(self) -> None:
        while data := await self._answers.read(_BYTES):
            if self._lose and not data.startswith(_CONTINUE):
                self._reset()
                return
            self._back.write(data)
            await self._back.drain()

    def _reset(self) -> None:
        raw: socket.socket = self._back.get_extra_info("socket")
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._back.transport.abort()

"""GatewayServer: the gateway as it listens, in the event loop that drives its sessions."""

import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn

from rollart_flow.gateway.core.calls import Refusal
from rollart_flow.gateway.server.app import GatewayApp
from rollart_flow.gateway.server.counters import GatewayCounters
from rollart_flow.gateway.server.keys import Answering, KeyRing
from rollart_flow.gateway.server.listening import (
    LOOPBACK,
    PrivateFolder,
    loopback_socket,
    uvicorn_for,
)
from rollart_flow.gateway.server.requests import LONGEST_BODY_BYTES, SESSION_BYTES

MODEL = "policy"
"""Name of the model that clients are told."""


class GatewayServer:
    """A server of sessions: `async with GatewayServer() as server`, or `start` and `stop`.

    Args:
        port: port on loopback to listen on; 0 for a free one, None for none.
        host: address of loopback of that port.
        unix: whether to listen on a Unix socket, too.
        model: name of the model that clients are told.
        longest_body_bytes: longest body of a request.
        session_bytes: most bytes of all bodies of a session; None for any number.
        on_unknown_key: called with the number of requests so far whose key no session has, for
            each of them.
    """

    def __init__(
        self,
        *,
        port: int | None = None,
        host: str = LOOPBACK,
        unix: bool = True,
        model: str = MODEL,
        longest_body_bytes: int = LONGEST_BODY_BYTES,
        session_bytes: int | None = SESSION_BYTES,
        on_unknown_key: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._port, self._host, self._unix, self._model = port, host, unix, model
        self._longest_body_bytes = longest_body_bytes
        self._keys = KeyRing(4 * longest_body_bytes, session_bytes)
        self._counters = GatewayCounters()
        self._on_unknown_key = on_unknown_key
        self._listeners: list[socket.socket] = []
        self._folder: PrivateFolder | None = None
        self._running: tuple[GatewayApp, uvicorn.Server] | None = None
        self.url: str | None = None
        """Address on loopback, without a path; None without a port."""
        self.socket: Path | None = None
        """Path of the Unix socket, alone in its folder; None without one."""

    async def start(self) -> None:
        """Listen, and answer in the running event loop.

        Raises:
            SettingsError: the address is not of loopback, or the port is taken.
        """
        app = GatewayApp(
            self._keys,
            self._counters,
            on_unknown_key=lambda: self._on_unknown_key(self._counters.refused[Refusal.KEY]),
            model=self._model,
            longest_body_bytes=self._longest_body_bytes,
        )
        server = uvicorn_for(app)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        try:
            self._listen()
            # Without `serve`, which would take over the signals of the process and poll.
            await server.startup(sockets=self._listeners)
        except BaseException:
            self._close_listeners()
            raise
        self._running = app, server

    def _listen(self) -> None:
        if self._port is not None:
            listener = loopback_socket(self._host, self._port)
            self._listeners.append(listener)
            host = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http://{host}:{listener.getsockname()[1]}"
        if self._unix:
            self._folder = PrivateFolder()
            listener = self._folder.listen()
            self._listeners.append(listener)
            self.socket = Path(listener.getsockname())

    def open(self, session: Answering) -> str:
        """Return a new key for a session; its requests are answered from now on."""
        return self._keys.open(session)

    def close(self, key: str) -> None:
        """Refuse requests with a key from now on; those under way go on. Twice is once."""
        session = self._keys.close(key)
        if session is not None:
            self._counters.add(session)

    @property
    def counters(self) -> GatewayCounters:
        """Figures since the start, those of open sessions included."""
        return self._counters.with_open(self._keys)

    async def stop(self) -> None:
        """Refuse what is under way, and stop to listen. Without effect if it has not started."""
        running, self._running = self._running, None
        if running is not None:
            app, server = running
            app.stop()
            await server.shutdown(sockets=self._listeners)
        self._close_listeners()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._folder is not None:
            self._folder.remove()
        self.url = self.socket = self._folder = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

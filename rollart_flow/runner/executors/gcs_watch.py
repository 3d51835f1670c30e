"""Notice of the death of Ray's GCS, the server that knows all nodes and actors of a cluster.

Without it no actor can start or end, calls of Ray block, and after a minute Ray ends this process
without a word. The watch holds a connection to the server: the kernel tells at once when it ends.
Invariant: a server that closes the connection and accepts another one is alive.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_CONNECT_S = 10.0
_PAUSE_S = 0.5
"""Pause between two attempts to reach the server."""
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds after which the kernel asks whether a silent machine is there, and how often."""


class GcsWatch:
    """A thread that waits for the end of a server.

    Args:
        address: HOST:PORT of the server.
        lost: called once, in the thread, if the server cannot be reached.
        patience_s: how long the server may be away, as while somebody restarts it.
    """

    def __init__(self, address: str, lost: Callable[[], object], patience_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self._lost = lost
        self._patience_s = patience_s
        self._over = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._watch, name="gcs-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch."""
        self._over.set()
        connection = self._connection
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CONNECT_S + _PAUSE_S)

    def _watch(self) -> None:
        while (connection := self._reach()) is not None:
            with connection, suppress(OSError):
                self._connection = connection
                while not self._over.is_set() and connection.recv(4096):
                    pass
            if self._over.wait(_PAUSE_S):
                return
        if not self._over.is_set():
            self._lost()

    def _reach(self) -> socket.socket | None:
        """Connect; None if the server is away for too long, or the watch is over."""
        end = time.monotonic() + self._patience_s
        while not self._over.is_set():
            with suppress(OSError):
                connection = socket.create_connection(self._address, _CONNECT_S)
                connection.settimeout(None)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEPALIVE.items():
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
                return connection
            if time.monotonic() >= end:
                return None
            self._over.wait(_PAUSE_S)
        return None

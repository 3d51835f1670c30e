"""Sockets of the gateway, and uvicorn as it serves them in the running event loop.

The invariant: nothing listens beyond loopback and a Unix socket that only this user reaches.
"""

import asyncio
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollart_flow.errors import SettingsError
from rollart_flow.gateway.server.connections import ClientConnection, with_connection
from rollart_flow.request_heads import HeadLimit
from rollart_flow.request_hosts import is_loopback
from rollart_flow.sandbox.images.tree import NOBODY
from rollart_flow.sandbox.owner import owner_label, sweep_folders

LOOPBACK = "127.0.0.1"
CONNECTIONS = 8192
"""Most open connections; further ones are answered with status 503, which clients repeat."""

_KEEP_ALIVE_S = 75
"""Time for which an idle connection stays open [s], longer than clients keep theirs: a connection
that the server closes first may get a request at the same moment."""
_GRACE_S = 5
"""Grace period in seconds for requests under way when the server stops."""
_LONGEST_PATH = 107
"""Most bytes of the path of a Unix socket (unix(7))."""
_SOCKET_NAME = "s"
_PREFIX = "rollart-gateway-"


class GatewayProtocol(HeadLimit, HttpToolsProtocol):
    """uvicorn's protocol in C, with a limit on the time and the length of each head.

    Requests know their connection, since its end says whether an answer was read.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection = ClientConnection()
        self.app_state = with_connection(self.app_state, self.connection)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.end(self.loop.time())
        super().connection_lost(exc)


def uvicorn_for(app: ASGIApp) -> uvicorn.Server:
    """Create a server that logs no requests, whose addresses may hold keys."""
    config = uvicorn.Config(
        app,
        http=GatewayProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # a warning for each malformed request would be the client's to cause
        access_log=False,
        date_header=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return uvicorn.Server(config)


def loopback_socket(host: str, port: int) -> socket.socket:
    """Listen on a port of loopback.

    Args:
        host: an address of loopback.
        port: the port; 0 for a free one.

    Raises:
        SettingsError: the address is another one, or the port is taken.
    """
    if not is_loopback(host):
        raise SettingsError(
            f"the gateway listens on loopback only, not on {host}; reach it from another machine "
            "through ssh -L"
        )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=CONNECTIONS)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"cannot listen on {host}:{port}: {error}; take another one") from None


class PrivateFolder:
    """A new folder for Unix sockets with a short path, which only this user reaches.

    Boxes of root run as another user, to whom folder and sockets belong then. The folders of
    processes that were killed are removed.
    """

    def __init__(self) -> None:
        name = f"{_PREFIX}{owner_label()}-"
        above = tempfile.gettempdir()
        if len(os.fsencode(above)) + len(name) + 10 + len(_SOCKET_NAME) > _LONGEST_PATH:
            above = "/tmp"
        sweep_folders(Path(above), _PREFIX)
        self.path = Path(tempfile.mkdtemp(prefix=name, dir=above))
        _give_to_boxes(self.path)

    def listen(self) -> socket.socket:
        """Listen on a Unix socket in the folder, with mode 0600."""
        path = self.path / _SOCKET_NAME
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
            _give_to_boxes(path)
            listener.listen(CONNECTIONS)
        except BaseException:
            listener.close()
            raise
        return listener

    def remove(self) -> None:
        """Remove the folder with its sockets."""
        shutil.rmtree(self.path, ignore_errors=True)


def _give_to_boxes(path: Path) -> None:
    """Let the user reach a path as whom the boxes of this process run."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)

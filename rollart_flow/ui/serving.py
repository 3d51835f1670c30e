"""Listening for browsers, until Ctrl-C.

The invariant: beyond loopback nothing is served without a token, unless the caller wants that.
"""

import secrets
import socket
from collections.abc import Callable, Sequence

from rollart_flow.errors import SettingsError
from rollart_flow.gateway.server.listening import LOOPBACK, uvicorn_for
from rollart_flow.request_hosts import is_loopback
from rollart_flow.secret import Secret
from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from rollart_flow.ui.warming import warming


def serve_ui(
    catalog: RunCatalog,
    on_listening: Callable[[str], None],
    *,
    host: str = LOOPBACK,
    port: int = 0,
    token: Secret | None = None,
    names: Sequence[str] = (),
    without_token: bool = False,
) -> None:
    """Serve runs until SIGINT or SIGTERM.

    Args:
        catalog: the runs.
        on_listening: called with the URL once connections are accepted.
        host: address to listen on; only this machine reaches the default.
        port: port to listen on; 0 selects a free one.
        token: token that browsers have to present. Beyond loopback one is made up unless it is
            given; it is part of the URL then, which a given one is not.
        names: names by which browsers address a server beyond loopback.
        without_token: whether a server beyond loopback has none, so that whoever reaches it reads
            every run.

    Raises:
        SettingsError: the server cannot listen on the address, or the token's variable is not set.
    """
    if token is not None and without_token:
        raise SettingsError("a token is named and refused; give one of the two options")
    made = None
    if token is None and not without_token and not is_loopback(host.lower()):
        made = secrets.token_urlsafe(32)
    wanted = token.reveal() if token is not None else made
    app = ui_app(catalog, Readers.at(host, wanted, names))
    server = uvicorn_for(app)
    with _listener(host, port) as listener, warming(catalog):
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}/"
        on_listening(url if made is None else f"{url}?token={made}")
        server.run(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"cannot listen on {host}:{port}: {error}; take another one") from None

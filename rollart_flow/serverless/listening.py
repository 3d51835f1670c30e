"""Settings of uvicorn for a reward server."""

from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollart_flow.request_heads import HeadLimit

if TYPE_CHECKING:
    from starlette.applications import Starlette

CONNECTIONS = 512
"""Most open connections; further ones are answered with status 503, which clients repeat."""

_GRACE_S = 5
"""Grace period in seconds for running calls when the server stops; remaining calls are then cut
off."""


class ImpatientProtocol(HeadLimit, H11Protocol):
    """uvicorn's protocol in pure Python, with a limit on the time of each head."""


def server_for(app: "Starlette") -> uvicorn.Server:
    """Create a server that limits connections and the time of each request's head."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=ImpatientProtocol,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return uvicorn.Server(config)

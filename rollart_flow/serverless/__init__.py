"""Remote reward functions: on a function platform, in a Ray Serve app or in a process pool.

    scored = reward(trajectories, "http://127.0.0.1:8000")
    scored = reward(trajectories, ServerlessReward("serve://app", CallPolicy(hedge_after_s=1)))

The package has one message contract (`contract`), a transport for each URL scheme (`transports`), a
calling side (`client`) and an answering side (`endpoint`, `server`). Names are imported at first
use, and so is the library of each transport.
"""

from typing import TYPE_CHECKING

from rollart_flow.exports import lazy_exports

if TYPE_CHECKING:
    from rollart_flow.serverless.client import ServerlessReward
    from rollart_flow.serverless.endpoint import Endpoint
    from rollart_flow.serverless.policy import CallPolicy
    from rollart_flow.serverless.server import http_app, http_target, lambda_handler, serve_app

__all__ = [
    "CallPolicy", "Endpoint", "ServerlessReward", "http_app", "http_target", "lambda_handler",
    "serve_app",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "policy": "CallPolicy",
        "endpoint": "Endpoint",
        "client": "ServerlessReward",
        "server": "http_app http_target lambda_handler serve_app",
    },
)

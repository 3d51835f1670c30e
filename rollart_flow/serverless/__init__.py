"""Rewards that run elsewhere: a function on a platform, an app of Ray Serve, a pool of processes.

    scored = reward(trajectories, "http://127.0.0.1:8000")
    scored = reward(trajectories, ServerlessReward("serve://app", CallPolicy(hedge_after_s=1)))

One contract (`contract`), a transport for each scheme (`transports`), one way to call (`client`)
and one to answer (`endpoint`, `server`). Names are imported when they are first used; no library of
a transport is before it is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollart_flow.serverless.client import ServerlessReward
    from rollart_flow.serverless.endpoint import Endpoint
    from rollart_flow.serverless.policy import CallPolicy
    from rollart_flow.serverless.server import http_app, http_target, lambda_handler, serve_app

__all__ = [
    "CallPolicy",
    "Endpoint",
    "ServerlessReward",
    "http_app",
    "http_target",
    "lambda_handler",
    "serve_app",
]

_HOME = {"CallPolicy": "policy", "Endpoint": "endpoint", "ServerlessReward": "client"}
"""Module of a name, if not `server`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'server')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Adapters of a reward function to hosting platforms: a web app, two kinds of function, a Serve
app.

    app = http_app(function)            any ASGI server
    handler = lambda_handler(function)  AWS Lambda
    target = http_target(function)      functions-framework and the platforms that speak it
    serve.run(serve_app(function), name="app", route_prefix=None)      Ray Serve

An answer of the contract is always a success for the platform: an error of the reward function is
part of the answer, and a 4xx or 5xx status means a transport error.
"""

import asyncio
import atexit
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.secret import Secret
from rollart_flow.serverless.endpoint import Endpoint
from rollart_flow.serverless.request_checks import RefusedError, RequestChecks
from rollart_flow.serverless.scaling import replicas_for_calls

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response


T = TypeVar("T")


class BackgroundLoop:
    """An event loop whose thread starts at first use, after a server forked its workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result. Any thread may call it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop()).result()

    def close(self) -> None:
        """Stop the loop and join its thread. May be called twice."""
        with self._lock:
            started, self._started = self._started, None
        if started is not None:
            loop, thread = started
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._started is None:
                loop = asyncio.new_event_loop()
                # A daemon, since the interpreter joins others before it calls `close`.
                thread = threading.Thread(target=loop.run_forever, name="rewards", daemon=True)
                thread.start()
                atexit.register(self.close)
                self._started = loop, thread
            return self._started[0]


LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = (LOOPBACK, "::1", "localhost")
_WATCHED_S = 1.0
"""Interval in seconds at which Ray Serve reads its metrics; rewards come in bursts, one per
step."""
_JSON = "application/json"
_EXTRA = "pip install rollart-flow[serverless]"


def http_app(
    function: RewardFunction,
    *,
    max_concurrent: int = 64,
    environ: Collection[str] = (),
    token: Secret | None = None,
    hosts: Collection[str] = (),
) -> "Starlette":
    """Create an ASGI app that answers POST at `/`; its processes end with the server.

    A request must have the content type application/json and a Host that is an IP address,
    localhost or one of `hosts`.

    Args:
        function: the reward function.
        max_concurrent: most concurrent evaluations.
        environ: names of environment variables that the function's processes get.
        token: bearer token that every request must carry; None admits every client that reaches
            the server.
        hosts: names by which clients address the server, such as "rewards.example.com".

    Raises MissingExtraError if starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serving rewards needs {error.name}; {_EXTRA}") from error
    endpoint = Endpoint(function, max_concurrent=max_concurrent, environ=environ)
    checks = RequestChecks.of(token, hosts)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await endpoint.close()

    async def answer(request: "Request") -> "Response":
        try:
            body = await checks.body(request)
        except RefusedError as error:
            closing = {"Connection": "close"}  # the rest of the body is not read
            return PlainTextResponse(str(error), error.status, headers=closing)
        return Response(await endpoint(body), media_type=_JSON)

    return Starlette(routes=[Route("/", answer, methods=["POST"])], lifespan=lifespan)


def serve_http(
    function: RewardFunction,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    environ: Collection[str] = (),
    token: Secret | None = None,
    hosts: Collection[str] = (),
    on_listening: Callable[[str], None],
) -> None:
    """Serve a reward function until SIGINT or SIGTERM.

    Args:
        host: address to listen on; the default is reachable only from this machine. Any other
            needs a token.
        port: port to listen on; 0 selects a free one.
        environ: see `http_app`.
        token: see `http_app`.
        hosts: see `http_app`.
        on_listening: called with the URL once connections are accepted.

    Raises:
        SettingsError: the server cannot listen on the address, or would admit other machines
            without a token.
        MissingExtraError: uvicorn is not installed.
    """
    try:
        from rollart_flow.serverless.listening import server_for
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serving rewards needs {error.name}; {_EXTRA}") from error
    if token is not None:
        token.reveal()
    elif host not in _LOOPBACK_NAMES:
        raise SettingsError(
            f"listening on {host} admits other machines, so it needs a token: put one into an "
            "environment variable and name it, as in --token-variable REWARD_TOKEN"
        )
    server = server_for(http_app(function, environ=environ, token=token, hosts=hosts))
    try:
        listener = socket.create_server((host, port), backlog=server.config.backlog)
    except (OSError, OverflowError) as error:
        raise SettingsError(f"cannot listen on {host}:{port}: {error}") from error
    with listener:
        on_listening(f"http://{host}:{listener.getsockname()[1]}")
        server.run(sockets=[listener])


def lambda_handler(
    function: RewardFunction, *, environ: Collection[str] = ()
) -> Callable[[dict[str, Any], object], dict[str, Any]]:
    """Create an AWS Lambda handler: `handler = lambda_handler(function)` in its module."""
    endpoint, loop = Endpoint(function, environ=environ), BackgroundLoop()

    def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
        return loop.run(endpoint.answer(event))

    return handler


def http_target(
    function: RewardFunction, *, environ: Collection[str] = ()
) -> Callable[[Any], tuple[bytes, int, dict[str, str]]]:
    """Create a functions-framework target: `target = http_target(function)` in its source file."""
    endpoint, loop = Endpoint(function, environ=environ), BackgroundLoop()

    def target(request: Any) -> tuple[bytes, int, dict[str, str]]:
        return loop.run(endpoint(request.get_data())), 200, {"Content-Type": _JSON}

    return target


def serve_app(
    function: RewardFunction,
    *,
    max_replicas: int = 8,
    max_concurrent: int = 64,
    idle_s: float = 60.0,
    num_cpus: float = 1.0,
    environ: Collection[str] = (),
) -> "Application":
    """Create a Ray Serve application that scales to zero (ROLLART section 7.3, R3).

    Args:
        max_replicas: maximum number of replicas; there is none while no call is pending.
        max_concurrent: concurrent evaluations in a replica; another replica is started beyond that.
        idle_s: seconds without a call after which the replicas end.
        num_cpus: CPUs that each replica reserves.
        environ: names of environment variables that the function's processes get.

    Raises MissingExtraError if Ray Serve is not installed.
    """
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"serve:// needs {error.name}; {_EXTRA}") from error
    from rollart_flow.serverless.replica import RewardReplica

    replicas = serve.deployment(
        max_ongoing_requests=2 * max_concurrent,
        ray_actor_options={"num_cpus": num_cpus},
        autoscaling_config={
            "min_replicas": 0,
            "initial_replicas": 0,
            "max_replicas": max_replicas,
            "target_ongoing_requests": max_concurrent,
            "policy": {"policy_function": replicas_for_calls},
            "upscale_delay_s": 1.0,
            "downscale_delay_s": idle_s,
            "downscale_to_zero_delay_s": idle_s,
            "metrics_interval_s": _WATCHED_S,
            "look_back_period_s": 5 * _WATCHED_S,
        },
        logging_config={"enable_access_log": False, "log_level": "WARNING"},
    )
    return replicas(RewardReplica).bind(function, max_concurrent, tuple(environ))

"""`serve_policy`: engine, sessions, server and run of a gateway by hand, in one event loop."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.engines.in_thread import ThreadInference
from rollart_flow.engines.registry import EngineOptions, build_engine
from rollart_flow.errors import SettingsError
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.gateway.core.tool_support import refusal_of_tools
from rollart_flow.gateway.server.gateway_server import GatewayServer
from rollart_flow.gateway.server.listening import LOOPBACK
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import load_codec, vocabulary_of
from rollart_flow.resources import CPU
from rollart_flow.runner.gateway.conversations import Conversations
from rollart_flow.runner.gateway.endpoint import GatewayEndpoint, check_prometheus
from rollart_flow.runner.gateway.recorder import (
    GatewayRecorder,
    GatewayResult,
    assignment_of,
    gateway_run,
)
from rollart_flow.runner.gateway.settings import GatewaySettings, found_policy
from rollart_flow.store import RunWriter
from rollart_flow.store.layout import policy_uri
from rollart_flow.types import AttemptLimits, Sampling
from rollart_flow.weights.folder_store import local_path

_NO_PLACE = (
    "the policy's chat template has no place for tools; take a model that was trained to call "
    "tools, or --no-tools for clients that send none"
)
_NO_BUDGET = CaptureLimits(max_calls=2**31, max_tokens=2**31, trained=frozenset(CallKind))
"""Limits of a conversation by hand, which has no budget of calls and tokens. No token is withheld:
a row is committed before all is known that tells the kind of its calls."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class GatewayAddresses:
    """Addresses of the gateway for the clients of each wire: the bases that their SDKs take."""

    chat: str
    responses: str
    messages: str
    google: str
    key: str
    """Key of the session, for the API key of any client."""
    run: str
    """Address of the run."""
    metrics: str | None = None
    """Address of the figures for Prometheus; None without."""

    @classmethod
    def of(cls, url: str, key: str, run: str, metrics: str | None = None) -> "GatewayAddresses":
        """Return the bases on a server."""
        return cls(f"{url}/v1", f"{url}/v1", url, url, key, run, metrics)


def serve_policy(
    settings: GatewaySettings, on_listening: Callable[[GatewayAddresses], None]
) -> GatewayResult:
    """Serve a policy and record the calls, until SIGINT or SIGTERM.

    Args:
        settings: the settings.
        on_listening: called with the addresses once clients are answered.

    Raises:
        SettingsError: there is no such policy, it has no chat template or one without a place for
            tools, the engine cannot serve it, or the port is taken.
        RunExistsError: the name of the run is taken.
        StoreError: the store cannot be written.
    """
    if settings.metrics is not None:
        check_prometheus()
    with found_policy(settings) as policy, gateway_run(settings, policy) as writer:
        return asyncio.run(_serve(settings, policy, writer, on_listening))


async def _serve(
    settings: GatewaySettings,
    policy: Policy,
    writer: RunWriter,
    on_listening: Callable[[GatewayAddresses], None],
) -> GatewayResult:
    async with serving(settings, policy, writer) as served:
        on_listening(served.addresses)
        await _signalled(served.failed)
    return served.result()


@dataclass(frozen=True, slots=True)
class ServedGateway:
    """A gateway that answers."""

    addresses: GatewayAddresses
    failed: asyncio.Future[None]
    """Gets the error of a conversation that could not be recorded."""
    result: Callable[[], GatewayResult]
    """Returns what is recorded by now."""


@asynccontextmanager
async def serving(
    settings: GatewaySettings, policy: Policy, writer: RunWriter
) -> AsyncIterator[ServedGateway]:
    """Serve a policy in the running event loop, and record all calls by the end of the context.

    Args:
        settings: the settings.
        policy: the policy, which the run's folder has.
        writer: writer of the run.

    Raises:
        SettingsError, StoreError: see `serve_policy`.
    """
    folder = local_path(policy_uri(writer.uri))
    codec = load_codec(folder)
    if settings.tools and (refusal := refusal_of_tools(codec)) is not None:
        raise SettingsError(_NO_PLACE) from refusal
    sampling = Sampling(
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        stop_token_ids=codec.stop_token_ids,
    )
    async with AsyncExitStack() as stack:
        recorder = GatewayRecorder(writer, codec, sampling)
        stack.push_async_callback(recorder.close)
        proxy = await stack.enter_async_context(_proxy(policy, folder, recorder))
        server = GatewayServer(port=settings.port, unix=False, session_bytes=None)
        await stack.enter_async_context(server)
        limits = AttemptLimits(context_tokens=policy.max_context)

        capture = replace(_NO_BUDGET, volatile=settings.volatile)

        def make(number: int) -> CaptureSession:
            assignment, name = assignment_of(number, sampling), f"c{number}.{proxy.session()}"
            return CaptureSession(assignment, codec, proxy, limits, capture, name=name)

        conversations = Conversations(make, recorder.record, settings.idle_s)
        stack.push_async_callback(conversations.close)
        key = server.open(conversations)
        assert server.url is not None, "the server listens on a port"
        figures = await _figures(stack, settings, server, writer)
        addresses = GatewayAddresses.of(server.url, key, writer.uri, figures)
        yield ServedGateway(addresses, conversations.failed, recorder.result)


async def _figures(
    stack: AsyncExitStack, settings: GatewaySettings, server: GatewayServer, writer: RunWriter
) -> str | None:
    """Open the endpoint of the figures, if there shall be one, and return its address."""
    if settings.metrics is None:
        return None
    endpoint = GatewayEndpoint(server, writer.info.name, settings.metrics)
    await stack.enter_async_context(endpoint)
    return f"http://{LOOPBACK}:{endpoint.port}/metrics"


@asynccontextmanager
async def _proxy(policy: Policy, folder: str, recorder: GatewayRecorder) -> AsyncIterator[LLMProxy]:
    """Provide the engine of a policy behind a proxy."""
    options = EngineOptions(seed=policy.seed)
    worker = await ThreadInference.start(
        partial(build_engine, policy, folder, options), worker="engine-0", hardware=CPU
    )
    proxy = LLMProxy(
        [worker], recorder.emit, recover=worker.recover, vocabulary=vocabulary_of(folder)
    )
    try:
        yield proxy
    finally:
        await proxy.close()
        await worker.close()


async def _signalled(failed: asyncio.Future[None]) -> None:
    """Return at SIGINT or SIGTERM, or once `failed` has an error."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    waiting = asyncio.create_task(stopped.wait(), name="signal")
    for number in _SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    try:
        await asyncio.wait((waiting, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

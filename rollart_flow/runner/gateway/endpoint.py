"""GatewayEndpoint: the figures of a gateway by hand for Prometheus.

Such a gateway has no steps, so its figures are counters since its start. Their names are those of
the catalog of metrics, with Prometheus' endings of counters.
"""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.gateway.core.calls import Refusal
from rollart_flow.gateway.server.counters import GatewayCounters
from rollart_flow.gateway.server.gateway_server import GatewayServer
from rollart_flow.gateway.server.listening import LOOPBACK
from rollart_flow.metrics.catalog import METRICS
from rollart_flow.trackers.prometheus import prometheus_name, start_endpoint

_ANSWER_S = 10.0
"""Longest time for the event loop of the gateway to read its figures [s]."""


def check_prometheus() -> None:
    """Raise MissingExtraError if the library for Prometheus is not installed."""
    try:
        import prometheus_client  # noqa: F401  asked only whether it is there
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "--metrics needs prometheus_client; pip install 'rollart-flow[metrics]'"
        ) from error


class GatewayEndpoint:
    """The endpoint of one gateway, on loopback: `async with GatewayEndpoint(...)`.

    Args:
        server: the gateway, in the running event loop.
        run: name of its run, the label of every figure.
        port: port; 0 takes a free one.
    """

    def __init__(self, server: GatewayServer, run: str, port: int) -> None:
        self._gateway, self._run, self.port = server, run, port
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            SettingsError: the port is taken.
        """
        try:
            self._server, self._thread = start_endpoint(self.collect, self.port, LOOPBACK)
        except OSError as error:
            said = f"--metrics: cannot listen on port {self.port} of {LOOPBACK}: {error.strerror}"
            raise SettingsError(said) from error
        self.port = int(self._server.server_port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening."""
        await asyncio.to_thread(self._server.shutdown)  # a request may wait for this loop
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Any]:
        """Give all figures; called for each request, in a thread."""
        read = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        yield from _families(read.result(_ANSWER_S), self._run)

    async def _read(self) -> GatewayCounters:
        return self._gateway.counters


def _families(counters: GatewayCounters, run: str) -> Iterator[Any]:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        SummaryMetricFamily,
    )

    refused = {reason: count for reason in Refusal if (count := counters.refused[reason])}
    counts = {
        "gateway/calls": counters.calls,
        "gateway/joins": counters.joins,
        "gateway/replays": counters.replays,
        "gateway/hang_ups": counters.hang_ups,
        "gateway/unknown_keys": counters.refused[Refusal.KEY],
    }
    for name, count in counts.items():
        metric = METRICS[name]
        family = CounterMetricFamily(prometheus_name(metric), metric.meaning, labels=["run"])
        family.add_metric([run], count)
        yield family
    metric = METRICS["gateway/refusals"]
    family = CounterMetricFamily(
        prometheus_name(metric), metric.meaning, labels=["run", metric.label]
    )
    for reason, count in refused.items():
        family.add_metric([run, str(reason)], count)
    yield family
    metric = METRICS["gateway/first_token_seconds"]
    times = SummaryMetricFamily(prometheus_name(metric), metric.meaning, labels=["run"])
    times.add_metric([run], count_value=counters.first_tokens, sum_value=counters.first_token_s)
    yield times
    now = GaugeMetricFamily("rollart_gateway_under_way", "calls under way", labels=["run"])
    now.add_metric([run], counters.under_way)
    yield now

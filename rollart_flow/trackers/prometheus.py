"""Prometheus: an endpoint of the tracking process with the newest value of every metric.

Names are those of the catalog with underscores: `train/loss` is `rollart_train_loss`. The endpoint
listens on loopback unless another address is given, and lives as long as the run.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rollart_flow.fields import Within
from rollart_flow.metrics.catalog import Metric
from rollart_flow.metrics.figures import Figure
from rollart_flow.registry import Requirement
from rollart_flow.request_hosts import host_name, is_loopback
from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink

if TYPE_CHECKING:
    from rollart_flow.metrics.window import RunRecord

DEFAULT_PORT = 9400


@dataclass(frozen=True)
class PrometheusTracker(Tracker):
    """An endpoint for Prometheus."""

    port: Annotated[int, Within(0, 65535)] = DEFAULT_PORT
    """Port; 0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; only this machine reaches the default. There is no password."""

    name: ClassVar[str] = "prometheus"
    requirements: ClassVar = (Requirement("prometheus-client", ("prometheus-client",), "metrics"),)

    def open(self, run: TrackedRun) -> TrackerSink:
        """Begin to listen."""
        return PrometheusSink(self, run)


def prometheus_name(metric: Metric, statistic: str = "") -> str:
    """Return the name of a metric, or of a statistic beside it, for Prometheus."""
    name = re.sub(r"\W", "_", f"rollart_{metric.name}")
    return f"{name}_{statistic}" if statistic else name


class PrometheusSink(TrackerSink):
    """The endpoint."""

    def __init__(self, tracker: PrometheusTracker, run: TrackedRun) -> None:
        self._run = run.name
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, tuple[str, ...]], Figure] = {}
        self._step = 0
        self._server, self._thread = start_endpoint(self.collect, tracker.port, tracker.host)
        self.port = int(self._server.server_port)

    def write(self, record: "RunRecord") -> None:
        """Replace the values of the groups that the record has; others stay."""
        groups = {figure.metric.group for figure in record.figures}
        with self._lock:
            kept = {k: f for k, f in self._newest.items() if f.metric.group not in groups}
            own = {(figure.metric.name, figure.labels): figure for figure in record.figures}
            self._newest = {**kept, **own}
            self._step = max(self._step, record.step)

    def collect(self) -> Iterator[Any]:
        """Give the families of all values; called for each request."""
        from prometheus_client.core import GaugeMetricFamily

        with self._lock:
            newest, step = list(self._newest.values()), self._step
        families: dict[str, Any] = {}
        for name, meaning, labels, values, value in _values(newest):
            if name not in families:
                families[name] = GaugeMetricFamily(name, meaning, labels=["run", *labels])
            families[name].add_metric([self._run, *values], value)
        last = GaugeMetricFamily("rollart_step", "newest step", labels=["run"])
        last.add_metric([self._run], step)
        yield last
        yield from families.values()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _MetricsCollector:
    """The collector that prometheus_client asks for metrics at each request."""

    def __init__(self, collect: Callable[[], Iterable[Any]]) -> None:
        self.collect = collect


def start_endpoint(
    collect: Callable[[], Iterable[Any]], port: int, host: str
) -> tuple[Any, threading.Thread]:
    """Serve families of metrics; return the server and its thread.

    Args:
        collect: gives the families; called for each request, in a thread.
        port: port to listen on; 0 takes a free one.
        host: address to listen on. At loopback, requests have to name this machine.

    Raises:
        OSError: the port is taken.
    """
    from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MetricsCollector(collect))
    server, thread = start_http_server(port, host, registry)
    if is_loopback(host):
        server.set_app(_for_this_machine(make_wsgi_app(registry)))
    return server, thread


def _for_this_machine(app: Callable[..., Any]) -> Callable[..., Any]:
    """Return a WSGI application that refuses requests which do not name loopback as their host.

    They come from a page in a browser whose name was rebound to this machine.
    """

    def guarded(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Any:
        host = str(environ.get("HTTP_HOST", ""))
        if is_loopback(host_name(host)):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"the host is another one; address this endpoint by localhost\n"]

    return guarded


def _values(
    figures: Iterable[Figure],
) -> Iterator[tuple[str, str, tuple[str, ...], tuple[str, ...], float]]:
    """Give name, meaning, labels, their values and the value of each figure and statistic."""
    for figure in figures:
        metric = figure.metric
        labels = tuple(metric.label.split("/")) if metric.label else ()
        values = figure.labels or ("",) * len(labels)
        unit = f" [{metric.unit}]" if metric.unit else ""
        yield prometheus_name(metric), metric.meaning + unit, labels, values, figure.value
        for statistic, value in zip(metric.beside, figure.beside, strict=False):
            said = f"{statistic} of: {metric.meaning}{unit}"
            yield prometheus_name(metric, statistic), said, labels, values, value

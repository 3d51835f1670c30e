"""OpenTelemetry: spans of a run by OTLP, at the endpoint of the standard variables, or in a file.

Spans are made from the times in the rows (`metrics.spans`), so that a run takes no time for them.
OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS are read by OpenTelemetry's own exporter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.registry import Requirement
from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from rollart_flow.metrics.spans import RunSpan
    from rollart_flow.metrics.window import RunRecord

_AT_ONCE = 512
"""Spans of one request."""


@dataclass(frozen=True)
class OtelTracker(Tracker):
    """OpenTelemetry's spans."""

    file: str = ""
    """File of OTLP's JSON, a line for each record; empty: OTLP over HTTP."""

    name: ClassVar[str] = "otel"
    requirements: ClassVar = (
        Requirement("opentelemetry", ("opentelemetry-exporter-otlp-proto-http",), "otel"),
    )

    def open(self, run: TrackedRun) -> TrackerSink:
        """Open the file or the exporter."""
        if self.file:
            return OtelFileSink(self, run)
        return OtelSink(run)


def _resource(run: TrackedRun) -> dict[str, str]:
    return {"service.name": "rollart", "rollart.run": run.name}


class OtelFileSink(TrackerSink):
    """The file of one run."""

    def __init__(self, tracker: OtelTracker, run: TrackedRun) -> None:
        from rollart_flow.trackers.otel_file import SpanFile

        self._file = SpanFile(Path(tracker.file), run.run_id, _resource(run))

    def write(self, record: "RunRecord") -> None:
        """Append the spans of one record."""
        from rollart_flow.metrics.spans import run_spans

        self._file.write(record.number, run_spans(record))


class OtelSink(TrackerSink):
    """The exporter of one run."""

    def __init__(self, run: TrackedRun) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        self._run = run.run_id
        self._resource = Resource.create(_resource(run))
        self._exporter = OTLPSpanExporter()

    def write(self, record: "RunRecord") -> None:
        """Export the spans of one record; the ids of a repeated span are the same."""
        from rollart_flow.metrics.spans import run_spans

        spans = [self._span(span) for span in run_spans(record)]
        for first in range(0, len(spans), _AT_ONCE):
            self._export(spans[first : first + _AT_ONCE])

    def _export(self, spans: "Sequence[ReadableSpan]") -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the endpoint of OTEL_EXPORTER_OTLP_ENDPOINT took no spans")

    def _span(self, span: "RunSpan") -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link

        from rollart_flow.metrics.spans import nanoseconds

        parent = None if span.parent is None else self._context(span.trace, span.parent)
        return ReadableSpan(
            name=span.name,
            context=self._context(span.trace, span.key),
            parent=parent,
            resource=self._resource,
            attributes={f"rollart.{name}": value for name, value in span.attributes.items()},
            links=[Link(self._context(trace, "")) for trace in span.links],
            start_time=nanoseconds(span.start),
            end_time=nanoseconds(max(span.start, span.end)),
        )

    def _context(self, trace: str, key: str) -> "SpanContext":
        from opentelemetry.trace import SpanContext, TraceFlags

        from rollart_flow.metrics.spans import span_id, trace_id

        own = span_id(self._run, trace, key)
        return SpanContext(trace_id(self._run, trace), own, False, TraceFlags(TraceFlags.SAMPLED))

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

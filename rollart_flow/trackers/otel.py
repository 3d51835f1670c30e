"""OpenTelemetry: spans of a run by OTLP, at the endpoint of the standard variables, or in a file.

Spans are made from the times in the rows (`metrics.spans`), so that a run takes no time for them.
OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_HEADERS are read by OpenTelemetry's own exporter.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
    """File of JSON lines, one for each record; empty: OTLP over HTTP."""

    name: ClassVar[str] = "otel"
    requirements: ClassVar = (
        Requirement("opentelemetry", ("opentelemetry-exporter-otlp-proto-http",), "otel"),
    )

    def open(self, run: TrackedRun) -> TrackerSink:
        """Open the exporter."""
        return OtelSink(self, run)


class OtelSink(TrackerSink):
    """The exporter of one run."""

    def __init__(self, tracker: OtelTracker, run: TrackedRun) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        self._run = run.run_id
        self._resource = Resource.create({"service.name": "rollart", "rollart.run": run.name})
        self._file = Path(tracker.file) if tracker.file else None
        self._exporter = None if self._file else OTLPSpanExporter()
        self._numbers = _numbers(self._file) if self._file and self._file.exists() else set()

    def write(self, record: "RunRecord") -> None:
        """Export the spans of one record; the ids of a repeated span are the same."""
        from rollart_flow.metrics.spans import run_spans

        if record.number in self._numbers:
            return
        spans = [self._span(span) for span in run_spans(record)]
        if self._file is not None:
            said = [json.loads(span.to_json(indent=None)) for span in spans]
            with self._file.open("a") as lines:
                lines.write(json.dumps({"record": record.number, "spans": said}) + "\n")
        for first in range(0, len(spans), _AT_ONCE):
            self._export(spans[first : first + _AT_ONCE])

    def _export(self, spans: "Sequence[ReadableSpan]") -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        exporter = self._exporter
        if exporter is not None and exporter.export(spans) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the endpoint of OTEL_EXPORTER_OTLP_ENDPOINT took no spans")

    def _span(self, span: "RunSpan") -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import Link

        parent = None if span.parent is None else self._context(span.trace, span.parent)
        return ReadableSpan(
            name=span.name,
            context=self._context(span.trace, span.key),
            parent=parent,
            resource=self._resource,
            attributes={f"rollart.{name}": value for name, value in span.attributes.items()},
            links=[Link(self._context(trace, "")) for trace in span.links],
            start_time=_ns(span.start),
            end_time=_ns(max(span.start, span.end)),
        )

    def _context(self, trace: str, key: str) -> "SpanContext":
        from opentelemetry.trace import SpanContext, TraceFlags

        from rollart_flow.metrics.spans import span_id, trace_id

        own = span_id(self._run, trace, key)
        return SpanContext(trace_id(self._run, trace), own, False, TraceFlags(TraceFlags.SAMPLED))

    def close(self) -> None:
        """Close the connection."""
        if self._exporter is not None:
            self._exporter.shutdown()  # type: ignore[no-untyped-call]


def _numbers(file: Path) -> set[int]:
    """Return the numbers of the records that a file has whole, without a torn end."""
    whole, torn, end = file.read_bytes().rpartition(b"\n")
    if end:
        file.write_bytes(whole + torn)
    return {int(_parsed(line)["record"]) for line in whole.splitlines()}


def _parsed(line: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def _ns(moment: datetime) -> int:
    """Return nanoseconds since 1970."""
    return int(moment.timestamp() * 1_000_000) * 1_000

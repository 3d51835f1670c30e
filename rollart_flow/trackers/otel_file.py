"""Spans in a file as OTLP's JSON, which OpenTelemetry's collector reads with `otlpjsonfile`.

Each line is the request of one record. The attribute `rollart.record` of its resource is the
record's number, by which a record that comes again is recognized.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rollart_flow.metrics.spans import RunSpan, nanoseconds, span_id, trace_id

_NUMBER = "rollart.record"
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_INTERNAL = 1
"""Kind of a span that is neither a request nor an answer of a service."""


class SpanFile:
    """The file of one run."""

    def __init__(self, path: Path, run_id: str, resource: Mapping[str, str]) -> None:
        """Open the file; a torn line at its end is cut off.

        Args:
            path: the file.
            run_id: name of the run, from which the ids of spans follow.
            resource: attributes of the resource.
        """
        self._path, self._run_id = path, run_id
        self._resource = _attributes(resource)
        self._numbers = set(_numbers(path)) if path.exists() else set[int]()

    def write(self, number: int, spans: Iterable[RunSpan]) -> None:
        """Append the spans of a record, unless the file has them."""
        if number in self._numbers:
            return
        traces: dict[str, str] = {}
        scope = {"scope": {"name": "rollart_flow"}, "spans": [self._span(s, traces) for s in spans]}
        resource = {"attributes": [*self._resource, *_attributes({_NUMBER: number})]}
        request = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
        with self._path.open("a") as lines:
            lines.write(json.dumps(request, separators=(",", ":")) + "\n")
        self._numbers.add(number)

    def _span(self, span: RunSpan, traces: dict[str, str]) -> dict[str, Any]:
        trace = span.trace
        found: dict[str, Any] = {
            "traceId": self._trace(trace, traces),
            "spanId": f"{span_id(self._run_id, trace, span.key):016x}",
            "name": span.name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(nanoseconds(span.start)),
            "endTimeUnixNano": str(nanoseconds(max(span.start, span.end))),
            "attributes": _attributes(
                {f"rollart.{name}": value for name, value in span.attributes.items()}
            ),
        }
        if span.parent is not None:
            found["parentSpanId"] = f"{span_id(self._run_id, trace, span.parent):016x}"
        if span.links:
            found["links"] = [
                {
                    "traceId": self._trace(linked, traces),
                    "spanId": f"{span_id(self._run_id, linked, ''):016x}",
                }
                for linked in span.links
            ]
        return found

    def _trace(self, trace: str, traces: dict[str, str]) -> str:
        if trace not in traces:
            traces[trace] = f"{trace_id(self._run_id, trace):032x}"
        return traces[trace]


def _attributes(values: Mapping[str, str | int | float | bool]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: str | int | float | bool) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _NOT_FINITE[str(value)]}
    return {"stringValue": value}


def _numbers(path: Path) -> Iterable[int]:
    """Give the numbers of the records that a file has whole, and cut off a torn end."""
    whole, torn, end = path.read_bytes().rpartition(b"\n")
    if end:
        path.write_bytes(whole + torn)
    for line in whole.splitlines():
        (spans,) = json.loads(line)["resourceSpans"]
        values = {each["key"]: each["value"] for each in spans["resource"]["attributes"]}
        yield int(values[_NUMBER]["intValue"])

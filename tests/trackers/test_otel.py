"""Spans have the times and the ids of the rows, in a file and at a real endpoint of OTLP."""

import gzip
import json
import threading
from collections import Counter
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rollart_flow.metrics.spans import RunSpan
from rollart_flow.store import Run
from rollart_flow.trackers.following import Tracked, catch_up
from rollart_flow.trackers.otel import OtelTracker
from rollart_flow.trackers.otel_file import SpanFile
from rollart_flow.types import EventKind
from tests.runs import small_run


def spans_in(file: Path) -> list[dict[str, Any]]:
    """Every span of a file, with its attributes as a mapping."""
    found = []
    for line in file.read_text().splitlines():
        (resource,) = json.loads(line)["resourceSpans"]
        (scope,) = resource["scopeSpans"]
        for span in scope["spans"]:
            values = {each["key"]: each["value"] for each in span["attributes"]}
            span["attributes"] = {name: plain(value) for name, value in values.items()}
            found.append(span)
    return found


def plain(value: dict[str, Any]) -> object:
    """The value of an attribute in OTLP's JSON."""
    ((kind, given),) = value.items()
    return int(given) if kind == "intValue" else given


def tracked(run: Run, tracker: OtelTracker) -> Tracked:
    """What became of a tracker that gets a run whose cursor was lost."""
    (Path(run.path) / "trackers" / "otel.json").unlink(missing_ok=True)
    (done,) = catch_up(run, [tracker])
    return done


def test_a_file_has_every_span_once_also_after_a_torn_line(tmp_path: Path) -> None:
    run, file = small_run(tmp_path), tmp_path / "spans.jsonl"
    assert tracked(run, OtelTracker(file=str(file))) == Tracked("otel", 7)
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert tracked(run, OtelTracker(file=str(file))) == Tracked("otel", 7)
    assert file.read_bytes() == whole
    spans = spans_in(file)
    counts = Counter(span["name"] for span in spans)
    rows = run.trajectories.collect()
    turns = rows["turns"].list.len().sum()
    assert counts == {
        "trajectory": rows.height, "commit": rows.height, "reward": rows["scored_at"].count(),
        "turn": turns, "generation": turns, "environment step": turns, "step": 4, "train": 4,
        "batch": 4, "weight publication": 5, "suspend": 4, "update": 4, "resume": 4,
    }  # fmt: skip
    assert len({span["spanId"] for span in spans}) == len(spans)
    roots = {span["spanId"]: span for span in spans}
    turn = next(span for span in spans if span["name"] == "turn")
    trajectory = roots[turn["parentSpanId"]]
    assert trajectory["name"] == "trajectory"
    assert trajectory["traceId"] == turn["traceId"]
    named = trajectory["attributes"]["rollart.trajectory_id"]
    row = rows.filter(rows["trajectory_id"] == named).row(0, named=True)
    began = datetime.fromtimestamp(int(trajectory["startTimeUnixNano"]) / 1e9, UTC)
    assert began == row["created_at"]
    batch = next(span for span in spans if span["name"] == "batch")
    linked = {link["traceId"] for link in batch["links"]}
    traced = {span["traceId"] for span in spans if span["name"] == "trajectory"}
    assert len(linked) == 8
    assert linked <= traced

    def values(name: str, attribute: str) -> list[object]:
        return sorted(s["attributes"][f"rollart.{attribute}"] for s in spans if s["name"] == name)

    assert values("trajectory", "trajectory_id") == sorted(rows["trajectory_id"])
    assert values("commit", "seq") == sorted(rows["seq"])
    assert values("step", "step") == [1, 2, 3, 4]
    assert values("weight publication", "policy_version") == [0, 1, 2, 3, 4]
    assert values("update", "subject") == sorted(
        run.events.filter(pl.col("kind") == EventKind.UPDATE).collect()["subject"]
    )


def test_a_number_that_is_not_finite_is_written_as_protobuf_has_it(tmp_path: Path) -> None:
    moment, file = datetime(2025, 1, 1, tzinfo=UTC), tmp_path / "spans.jsonl"
    about = {"loss": float("nan"), "low": float("-inf"), "step": 3, "hung_up": True}
    SpanFile(file, "run", {}).write(1, [RunSpan("step", "step 3", "", moment, moment, None, about)])
    ((span,),) = [spans_in(file)]
    assert span["attributes"] == {
        "rollart.loss": "NaN", "rollart.low": "-Infinity", "rollart.step": 3,
        "rollart.hung_up": True,
    }  # fmt: skip


class Collector(BaseHTTPRequestHandler):
    """An endpoint of OTLP over HTTP, which keeps the names of the spans that it gets."""

    names: Counter[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.names.update(span.name for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_spans_reach_the_endpoint_of_the_standard_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Collector.names = Counter()
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        try:
            done = tracked(small_run(tmp_path, steps=1), OtelTracker())
        finally:
            server.shutdown()
            thread.join()
    assert done == Tracked("otel", 2)
    assert Collector.names["trajectory"] == 8 + 3
    assert Collector.names["step"] == 1

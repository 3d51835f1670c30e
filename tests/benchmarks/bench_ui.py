"""Benchmark of `rollart ui`: seconds of the server for each page of a long run.

A request is the whole answer: rows of all views of the page, and their JSON, in this process. Files
are in the system's cache after a first request, as those are of a run that is watched. The first
request of all is one to a server that has started and read the overview of the newest run, which is
another one.
"""

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from starlette.testclient import TestClient

from rollart_flow.schema import row_schema
from rollart_flow.store import RunInfo, RunWriter
from rollart_flow.ui.app import ui_app
from rollart_flow.ui.catalog import RunCatalog
from rollart_flow.ui.guard import Readers
from rollart_flow.ui.warming import warm
from tests.benchmarks.bench_store import seconds, some_rows
from tests.benchmarks.records import Record, record

SIZES = {100_000: 0.3, 1_000_000: 1.0}
"""Trajectories of a run, and the longest time of a page [s]."""
_BLOCK = 10_000
_BATCH = 1000
_GROUP = 8
_TOKENS = 64
_REPEATS = 5
_MOMENT = datetime(2025, 1, 1, tzinfo=UTC)


def run() -> Iterator[Record]:
    """All records; takes two minutes, most of them to write the runs."""
    for trajectories, goal_s in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            write_long_run(Path(folder) / "long", trajectories)
            write_long_run(Path(folder) / "newest", _BLOCK)
            yield from _pages(folder, trajectories, goal_s)


def write_long_run(folder: Path, trajectories: int) -> None:
    """Write a run whose steps train on a thousand trajectories each."""
    block = some_rows(np.random.default_rng(0), _BLOCK, _TOKENS, _TOKENS)
    with RunWriter.create(str(folder), RunInfo("long", "bench", 0)) as writer:
        for first in range(0, trajectories, _BLOCK):
            numbers = np.arange(first, first + _BLOCK)
            writer.commit("trajectories", _trajectories(block, numbers))
            tables = {"batches": _batches(numbers), "events": _events(numbers)}
            writer.commit_many(tables | {"steps": _steps(numbers[::_BATCH])})


def _names(prefix: str, numbers: "np.ndarray[Any, Any]") -> pa.Array:
    return pa.array([f"{prefix}{number:08d}" for number in numbers])


def _trajectories(block: pa.Table, numbers: "np.ndarray[Any, Any]") -> pa.Table:
    versions = (numbers // _BATCH).astype(np.int32)
    moments = [_MOMENT + timedelta(seconds=int(number) / 100) for number in numbers]
    new = {
        "trajectory_id": _names("t", numbers),
        "episode_id": _names("t", numbers),
        "group_id": _names("g", numbers // _GROUP),
        "task_id": _names("k", numbers // _GROUP),
        "split": pa.array(["train"] * len(numbers)),
        "outcome": pa.array(["completed"] * len(numbers)),
        "attempt": pa.array((numbers % _GROUP).astype(np.int32)),
        "branch": pa.array(np.zeros(len(numbers), np.int32)),
        "policy_version_start": pa.array(versions),
        "policy_version_end": pa.array(versions),
        "created_at": pa.array(moments),
        "finished_at": pa.array([moment + timedelta(seconds=9) for moment in moments]),
    }
    unused = ("messages", "tools", "images", "parent", "reason", "error", "diff", "verifier")
    nulls = {name: pa.nulls(len(numbers), block.schema.field(name).type) for name in unused}
    return _with(block, new | nulls)


def _batches(numbers: "np.ndarray[Any, Any]") -> pa.Table:
    steps = (numbers // _BATCH + 1).astype(np.int32)
    return _filled(
        "batches",
        len(numbers),
        {
            "step": pa.array(steps),
            "position": pa.array((numbers % _BATCH).astype(np.int32)),
            "trajectory_id": _names("t", numbers),
            "episode_id": _names("t", numbers),
            "group_id": _names("g", numbers // _GROUP),
            "advantage": pa.array([[0.5]] * len(numbers)),
            "policy_version": pa.array(steps - 1),
            "trained_version": pa.array(steps - 1),
        },
    )


def _steps(numbers: "np.ndarray[Any, Any]") -> pa.Table:
    steps = (numbers // _BATCH + 1).astype(np.int32)
    values = {name: pa.array(steps) for name in ("step", "policy_version")}
    return _filled("steps", len(steps), {**values, "step_s": pa.array(np.full(len(steps), 10.0))})


def _events(numbers: "np.ndarray[Any, Any]") -> pa.Table:
    groups = numbers[::_GROUP] // _GROUP
    moments = [_MOMENT + timedelta(seconds=int(group) / 12.5) for group in groups]
    values = {"subject": _names("g", groups), "at": pa.array(moments)}
    kinds = pa.array(["admit"] * len(groups))
    return _filled(
        "events", len(groups), {**values, "kind": kinds, "detail": pa.array(["{}"] * len(groups))}
    )


def _filled(table: str, count: int, values: Mapping[str, pa.Array]) -> pa.Table:
    """Rows with some columns; the others are null where they may be, else the same value."""
    schema = row_schema(table)
    columns = []
    for field in schema:
        if field.name in values:
            columns.append(values[field.name])
        elif field.nullable:
            columns.append(pa.nulls(count, field.type))
        elif pa.types.is_timestamp(field.type):
            columns.append(pa.array([_MOMENT] * count))
        elif pa.types.is_string(field.type):
            columns.append(pa.array([field.name] * count))
        else:
            columns.append(pa.array([1] * count))
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(cast, schema=schema)


def _with(rows: pa.Table, values: Mapping[str, pa.Array]) -> pa.Table:
    for name, column in values.items():
        field = rows.schema.field(name)
        rows = rows.set_column(rows.schema.get_field_index(name), field, column.cast(field.type))
    return rows


def _pages(store: str, trajectories: int, goal_s: float) -> Iterator[Record]:
    app = ui_app(RunCatalog(store=store), Readers.at("127.0.0.1", None))
    middle = trajectories // 2
    asked: dict[str, dict[str, str]] = {
        "page/overview": {},
        "page/step": {"step": str(middle // _BATCH + 1)},
        "page/group": {"group": f"g{middle // _GROUP:08d}"},
        "page/trajectory": {"trajectory": f"t{middle:08d}"},
        "page/events": {},
        "page/moments": {},
        "page/found": {"text": f"t{middle:08d}"},
        "sql": {"q": "select domain, avg(reward) as r from trajectories group by domain"},
    }
    warm(RunCatalog(store=store))  # as a server is that has just started: of another run
    client = TestClient(app, base_url="http://localhost")
    overview = "/api/run/long/page/overview"
    yield record(
        f"ui: the first overview of a run with {trajectories:,} trajectories",
        seconds(lambda: client.get(overview)), "s", at_most=goal_s,
    )  # fmt: skip
    for path, parameters in asked.items():

        def ask(path: str = path, parameters: Mapping[str, str] = parameters) -> None:
            answer = client.get(f"/api/run/long/{path}", params=dict(parameters))
            assert answer.status_code == 200, answer.text

        first_s = seconds(ask)
        yield record(
            f"ui: {path.removeprefix('page/')} of a run with {trajectories:,} trajectories",
            statistics.median(seconds(ask) for _ in range(_REPEATS)),
            "s",
            at_most=goal_s,
            peer=f"the first time {first_s:.2f} s",
        )

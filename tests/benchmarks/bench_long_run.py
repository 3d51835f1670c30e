"""Benchmark of a long run: opening, querying, resuming it, and what it leaves on the disk.

A run of a million trajectories of 32 tokens is written through the real writer, in commits of 512
rows with their events and manifests, maintained as a run maintains it, and closed. All figures are
taken of the closed run, in new processes where memory or the time to open counts.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollart_flow.schema import TABLES, row_schema
from rollart_flow.store import RunInfo, RunWriter
from rollart_flow.store.table import data_files, open_table
from tests.benchmarks.bench_store import some_rows
from tests.benchmarks.records import Record, record
from tests.builders import MOMENT, step_row

_TRAJECTORIES = 1_000_000
_GROUP_SIZE = 8
_ROWS, _TOKENS = 512, 32
_OPEN = 64
"""Groups at the end of the run that no step has trained on."""

_QUERY = "SELECT domain, avg(reward) AS reward FROM trajectories GROUP BY domain"


def run() -> Iterator[Record]:
    """All records; takes about three minutes."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _records(Path(folder))


def _records(folder: Path) -> Iterator[Record]:
    long, short = str(folder / "long"), str(folder / "short")
    write_run(short, _TRAJECTORIES // 100)
    started, cpu_began = time.perf_counter(), time.process_time()
    write_run(long, _TRAJECTORIES)
    cpu_s, wall_s = time.process_time() - cpu_began, time.perf_counter() - started
    yield record(
        "long run: CPU of a commit of 512 rows with events and manifest, maintenance included",
        cpu_s / (_TRAJECTORIES // _ROWS) * 1e3,
        "ms",
        peer=f"{_TRAJECTORIES:,} trajectories of {_TOKENS} tokens in {wall_s:.0f} s",
    )
    open_s, query_s = map(float, _measured(_OPEN_AND_QUERY, long, _QUERY))
    yield record("long run: opens, to a snapshot of all tables", open_s, "s", at_most=1)
    yield record(f"long run: {_QUERY}", query_s, "s", at_most=1)
    live = [file for table in TABLES for file in data_files(open_table(long, table))]
    live_bytes = sum(file.size_bytes for file in live)
    found = [path.stat().st_size for path in Path(long).rglob("*") if path.is_file()]
    yield record("long run: live files of all tables", len(live), "files", at_most=1999)
    yield record(
        "long run: disk against live rows, after the end",
        sum(found) / live_bytes,
        "x",
        at_most=1.5,
        peer=f"{live_bytes / 1e6:.0f} MB of live rows; {len(found)} files with logs",
    )
    short_mb, long_mb = (float(_measured(_RESUME, uri)[0]) for uri in (short, long))
    yield record(
        "long run: memory of recovery, against a run of a hundredth of its length",
        long_mb / short_mb,
        "x",
        at_most=1.5,
        peer=f"{long_mb:.0f} MB at {_TRAJECTORIES:,}, {short_mb:.0f} MB at"
        f" {_TRAJECTORIES // 100:,} trajectories, Python and its libraries included",
    )


def write_run(uri: str, trajectories: int) -> None:
    """Write a run of many trajectories, of which the last groups are not trained on."""
    rng = np.random.default_rng(0)
    rows = some_rows(rng, _ROWS, _TOKENS, _TOKENS)
    groups = _ROWS // _GROUP_SIZE
    with RunWriter.create(uri, RunInfo("long", "bench", 0)) as writer:
        for number in range(trajectories // _ROWS):
            first = number * groups
            names = [f"g{first + n:08d}" for n in range(groups)]
            commit = {
                "trajectories": _named(_sampled(rows, rng), names),
                "events": _admissions(names),
            }
            writer.commit_many(commit)
            if (number + 1) * groups <= trajectories // _GROUP_SIZE - _OPEN:
                step = number + 1
                writer.commit_many({"batches": _manifest(step, names), "steps": step_row(step)})
            if writer.maintenance_due:
                writer.maintain()


def _ids(groups: list[str]) -> list[str]:
    return [f"{group}-{attempt:02d}" for group in groups for attempt in range(_GROUP_SIZE)]


def _sampled(rows: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Rows with other tokens, so that files are as large as those of a run."""
    count = rows.num_rows * _TOKENS
    offsets = pa.array(range(0, count + 1, _TOKENS), pa.int32())
    for name, drawn in {
        "token_ids": rng.integers(0, 1000, count, np.int32),
        "logprobs": -rng.exponential(1.0, count).astype(np.float32),
    }.items():
        place = rows.schema.get_field_index(name)
        field = rows.schema.field(place)
        lists = pa.ListArray.from_arrays(offsets, pa.array(drawn)).cast(field.type)
        rows = rows.set_column(place, field, lists)
    return rows


def _named(rows: pa.Table, groups: list[str]) -> pa.Table:
    ids = pa.array(_ids(groups))
    values = {
        "trajectory_id": ids,
        "episode_id": ids,
        "group_id": pa.array(np.repeat(groups, _GROUP_SIZE)),
        "split": pa.array(["train"] * rows.num_rows),
        "outcome": pa.array(["completed"] * rows.num_rows),
        "attempt": pa.array(list(range(_GROUP_SIZE)) * len(groups), pa.int32()),
        "reason": pa.nulls(rows.num_rows, pa.string()),
        "error": pa.nulls(rows.num_rows, pa.string()),
    }
    for name, column in values.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows


def _admissions(groups: list[str]) -> pa.Table:
    values = {
        "at": [MOMENT] * len(groups),
        "kind": ["admit"] * len(groups),
        "subject": groups,
        "domain": ["frozenlake"] * len(groups),
        "detail": ['{"payload": "{}", "task_id": "task"}'] * len(groups),
    }
    schema = row_schema("events")
    columns = [pa.array(values.get(f.name, [None] * len(groups)), f.type) for f in schema]
    return pa.table(columns, schema=schema)


def _manifest(step: int, groups: list[str]) -> pa.Table:
    ids = _ids(groups)
    values = {
        "step": [step] * len(ids),
        "position": list(range(len(ids))),
        "trajectory_id": ids,
        "group_id": list(np.repeat(groups, _GROUP_SIZE)),
        "advantage": [[1.0]] * len(ids),
        "weight": [1.0] * len(ids),
        "staleness": [1] * len(ids),
        "policy_version": [step] * len(ids),
        "trained_version": [step] * len(ids),
    }
    schema = row_schema("batches")
    columns = [pa.array(values.get(f.name, [None] * len(ids)), f.type) for f in schema]
    return pa.table(columns, schema=schema)


_OPEN_AND_QUERY = """
import sys, time
import polars, deltalake
from rollart_flow.store import open_run
started = time.perf_counter()
run = open_run(sys.argv[1])
run.snapshot()
opened = time.perf_counter()
assert run.sql(sys.argv[2]).height == 2
print(opened - started, time.perf_counter() - opened)
"""
_RESUME = """
import sys
from pathlib import Path
from rollart_flow.operators.recovery import recover
from rollart_flow.store import open_run
found = recover(open_run(sys.argv[1]))
assert found.pending_rows.num_rows == len(found.control.pending) >= 512
status = Path("/proc/self/status").read_text().split()
print(int(status[status.index("VmHWM:") + 1]) / 1024)
"""


def _measured(program: str, *arguments: str) -> list[str]:
    """What a program prints in a process of its own."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.split()

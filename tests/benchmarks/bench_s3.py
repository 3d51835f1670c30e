"""A run's buffer and tables in S3 beside the same in a folder, over and over in turns.

The server is a real one on loopback (`tests.s3.server`), so that the figures show the cost of S3 in
requests, signatures and copies. It shares this machine's cores with its clients.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from rollart_flow.runner.executors.ray_cluster import ray_cluster
from rollart_flow.store import Run, RunInfo, RunWriter
from tests.benchmarks.bench_buffer import PUTS, ROWS, some_tables, through_buffer
from tests.benchmarks.bench_store import seconds, some_rows
from tests.benchmarks.records import Record, record
from tests.builders import batches
from tests.s3.server import BUCKET, s3_server

COMMITS = 24
BATCH = 128
_STEP = 3
"""Step of the manifest: it trains on version 1, as `some_rows` says."""
ROUNDS = 3


def run() -> list[Record]:
    """Rates in S3 against local ones; takes about two minutes."""
    with tempfile.TemporaryDirectory() as folder, s3_server(Path(folder) / "server") as server:
        server.client().create_bucket(Bucket=BUCKET)
        with _told(server.environment()):
            places = {"local": f"{folder}/runs", "s3": f"s3://{BUCKET}/runs"}
            return [*_tables(places), _buffer(places)]


def _buffer(places: dict[str, str]) -> Record:
    """Put, committed, in a batch, read: over actor calls, as in a run."""
    tables, rows = list(some_tables()), ROWS * PUTS
    taken: dict[str, list[float]] = {name: [] for name in places}
    with ray_cluster():
        for turn in range(ROUNDS):
            for name, place in places.items():
                taken[name].append(asyncio.run(through_buffer(f"{place}/buffer-{turn}", tables))[1])
    return _ratio("buffer: put, committed, in a batch, read", taken, rows, "trajectories")


def _tables(places: dict[str, str]) -> Iterator[Record]:
    rng = np.random.default_rng(0)
    rows = [some_rows(rng, ROWS, 1000, 3000) for _ in range(4)]
    commits: dict[str, list[float]] = {name: [] for name in places}
    reads: dict[str, list[float]] = {name: [] for name in places}
    for turn in range(ROUNDS):
        for name, place in places.items():
            writer = RunWriter.create(f"{place}/tables-{turn}", RunInfo("tables", "bench", 0))
            writer.commit("trajectories", rows[0])
            commits[name].append(seconds(lambda w=writer: _commit(w, rows)))  # type: ignore[misc]
            _name_batch(writer)
            reader = Run(writer.uri)
            reader.batch(_STEP)
            reads[name].append(seconds(lambda r=reader: [r.batch(_STEP) for _ in range(4)]))  # type: ignore[misc]
            writer.close()
    yield _ratio("durable commits of 64 rows of 1k-3k tokens", commits, COMMITS * ROWS, "rows")
    yield _ratio("run.batch(step), 128 rows from many files", reads, 4 * BATCH, "rows")


def _commit(writer: RunWriter, rows: Sequence[pa.Table]) -> None:
    for number in range(COMMITS):
        writer.commit("trajectories", rows[number % len(rows)])


def _name_batch(writer: RunWriter) -> None:
    """A manifest of the rows that were committed first."""
    numbers = list(range(ROWS)) * (BATCH // ROWS)
    manifest = batches(_STEP, numbers, version=1)
    names = pa.array([f"trajectory_id-{number}" for number in numbers])
    place = manifest.schema.get_field_index("trajectory_id")
    writer.commit("batches", manifest.set_column(place, manifest.schema.field(place), names))


def _ratio(what: str, taken: dict[str, list[float]], count: int, unit: str) -> Record:
    """The best round of S3 against the best of local: others may take the cores meanwhile."""
    best = {name: min(times) for name, times in taken.items()}
    return record(
        f"s3: {what}, against local",
        best["local"] / best["s3"],
        "x",
        at_least=0.5,
        peer=", ".join(f"{name} {count / time_s:.0f} {unit}/s" for name, time_s in best.items()),
    )


@contextmanager
def _told(environment: dict[str, str]) -> Iterator[None]:
    """Let this process and those that it starts find the server."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

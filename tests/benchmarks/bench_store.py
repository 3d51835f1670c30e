"""Benchmark of the store: durable commits, bytes on disk, and a query, each beside JSONL.

The JSONL peer does what rollout dumps of RL frameworks do: one line per trajectory by `json.dumps`,
append, fsync, and a reader that globs the folder and parses by `json.loads`. Rows are made before
any clock starts: Arrow tables for the store, dictionaries for JSONL.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rollart_flow.schema import TABLES, delta_schema, row_schema
from rollart_flow.store import Run, RunInfo, RunWriter, open_run
from rollart_flow.store.blobs import FSYNC_VARIABLE
from rollart_flow.store.layout import table_uri
from rollart_flow.store.watch import Watch
from tests.benchmarks.records import Record, record

_VOCABULARY = 1000
_BATCH = 64
_MOMENT = datetime(2025, 1, 1, tzinfo=UTC)


def run() -> list[Record]:
    """All records; takes about half a minute."""
    with tempfile.TemporaryDirectory() as folder:
        made = _made(Path(folder) / "made")
        return [*_durable(Path(folder) / "durable"), *_query(Path(folder) / "query"), made]


def _durable(folder: Path) -> Iterator[Record]:
    rng = np.random.default_rng(0)
    tables = [some_rows(rng, _BATCH, 1000, 3000) for _ in range(12)]
    plain = [dictionaries(table) for table in tables]
    count = len(tables) * _BATCH

    writer = RunWriter.create(str(folder / "commit"), RunInfo("commit", "bench", 0))
    writer.commit("trajectories", tables[0])
    commit_s = seconds(lambda: [writer.commit("trajectories", t) for t in tables * 3]) / 3
    through = RunWriter.create(str(folder / "tables"), RunInfo("tables", "bench", 0))
    reader = open_run(through.uri)
    stored_s = seconds(lambda: _through_tables(through, reader, tables))
    jsonl_s = seconds(lambda: through_jsonl(folder / "jsonl", plain))
    jsonl = f"JSONL append+fsync+glob {count / jsonl_s:.0f}/s"
    yield record(
        "store: durable commits of 64 rows of 1k-3k tokens (the buffer serves them from memory)",
        count / commit_s,
        "trajectories/s",
        at_least=2500,
    )
    yield record(
        "store: the same against JSONL",
        jsonl_s / commit_s,
        "x",
        at_least=5,
        peer=jsonl,
    )
    yield _flushed(writer, tables)
    yield record(
        "store: committed and read back by another reader, 128 rows at a time",
        count / stored_s,
        "trajectories/s",
        peer=jsonl,
    )
    yield _bytes(folder, plain)


def _flushed(writer: RunWriter, tables: list[pa.Table]) -> Record:
    """What it costs that rows are on the disk before they are acknowledged; commits in turns."""
    spent = {"1": 0.0, "0": 0.0}
    with pytest.MonkeyPatch.context() as changed:
        for table in tables * 3:
            for setting in spent:
                changed.setenv(FSYNC_VARIABLE, setting)
                spent[setting] += seconds(partial(writer.commit, "trajectories", table))
    flushed, unflushed = (1e3 * each / (3 * len(tables)) for each in spent.values())
    return record(
        f"store: a durable commit of 64 rows against one with {FSYNC_VARIABLE}=0",
        flushed / unflushed,
        "x",
        peer=f"{flushed:.1f} ms and {unflushed:.1f} ms",
    )


def _through_tables(writer: RunWriter, reader: Run, tables: list[pa.Table]) -> None:
    """Commit batch by batch; a reader takes 128 rows whenever they are there."""
    seen = 0
    for number, table in enumerate(tables, start=1):
        _, last = writer.commit("trajectories", table, transaction=number)
        if number % 2 == 0:
            read = reader.trajectories.filter(pl.col("seq") > seen).collect()
            assert read.height == 2 * _BATCH
            seen = last


def through_jsonl(folder: Path, batches: list[list[dict[str, Any]]]) -> None:
    folder.mkdir(parents=True)
    seen: set[Path] = set()
    for number, rows in enumerate(batches, start=1):
        with (folder / f"{number:06d}.jsonl").open("a") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
            stream.flush()
            os.fsync(stream.fileno())
        if number % 2 == 0:
            fresh = sorted(set(folder.glob("*.jsonl")) - seen)
            read = [json.loads(line) for path in fresh for line in path.read_text().splitlines()]
            assert len(read) == 2 * _BATCH
            seen.update(fresh)


def _bytes(folder: Path, batches: list[list[dict[str, Any]]]) -> Record:
    """Everything under the table's folder, logs included, against JSON as small as it gets."""
    table = folder / "tables" / "tables" / "trajectories"
    stored = sum(path.stat().st_size for path in table.rglob("*") if path.is_file())
    tokens = sum(len(row["token_ids"]) for rows in batches for row in rows)
    usual = sum(path.stat().st_size for path in (folder / "jsonl").glob("*.jsonl"))
    smallest = sum(len(_smallest_json(row)) + 1 for rows in batches for row in rows)
    return record(
        "store: bytes on disk against JSONL, 1k vocabulary, float32 logprobs",
        stored / smallest,
        "x",
        at_most=0.3,
        peer=f"bytes a token: store {stored / tokens:.2f}, JSONL {smallest / tokens:.2f} without"
        f" blanks and with shortest float32 digits, {usual / tokens:.2f} as json.dumps writes it",
    )


def _smallest_json(row: dict[str, Any]) -> str:
    digits = [float(str(np.float32(value))) for value in row["logprobs"]]
    return json.dumps(row | {"logprobs": digits}, separators=(",", ":"))


def _query(folder: Path) -> Iterator[Record]:
    rng = np.random.default_rng(1)
    blocks = [some_rows(rng, 500, 512, 512) for _ in range(4)]
    lines = ["".join(json.dumps(row) + "\n" for row in dictionaries(block)) for block in blocks]
    folder.mkdir(parents=True)
    dump = folder / "trajectories.jsonl"
    with dump.open("w") as stream:
        stream.writelines(lines * 10)
    with RunWriter.create(str(folder / "run"), RunInfo("run", "bench", 0)) as writer:
        for block in blocks * 10:
            writer.commit("trajectories", block)
    stored = open_run(folder / "run")

    expected = _mean_by_json(dump)
    for read in (_mean_by_table(stored), _mean_by_ndjson(dump)):
        assert read.keys() == expected.keys()
        assert all(abs(read[domain] - expected[domain]) < 1e-9 for domain in read)
    table_s = statistics.median(seconds(lambda: _mean_by_table(stored)) for _ in range(9))
    json_s = seconds(lambda: _mean_by_json(dump))
    ndjson_s = seconds(lambda: _mean_by_ndjson(dump))
    yield record(
        "store: mean(reward) by domain over 20k stored trajectories, against json.loads",
        json_s / table_s,
        "x",
        at_least=100,
        peer=f"polars on the table {table_s * 1e3:.0f} ms (snapshot included), polars ndjson"
        f" {ndjson_s * 1e3:.0f} ms, json.loads {json_s * 1e3:.0f} ms",
    )
    yield _opened_again(stored.uri)


def _opened_again(uri: str) -> Record:
    """A snapshot of all tables by one more reader of a process, as readers in it share them, and
    with tables of its own; in turns."""
    shared, own = [], []
    for _ in range(20):
        shared.append(seconds(lambda: open_run(uri).snapshot()))
        own.append(seconds(lambda: Watch(uri).snapshot()))
    again, anew = statistics.median(shared), statistics.median(own)
    return record(
        "store: all tables of a run that the process has read, against opening them anew",
        anew / again,
        "x",
        at_least=20,
        peer=f"{again * 1e3:.1f} ms and {anew * 1e3:.0f} ms",
    )


def _made(folder: Path) -> Record:
    """The tables of a new run, on the disk when the writer is made, and those that deltalake makes,
    which it does not sync; in turns."""
    ours, theirs = [], []
    for number in range(10):
        run, other = str(folder / f"ours{number}"), str(folder / f"theirs{number}")
        ours.append(seconds(partial(RunWriter.create, run, RunInfo("made", "bench", 0))))
        theirs.append(seconds(partial(_made_by_deltalake, other)))
    own, peer = statistics.median(ours), statistics.median(theirs)
    return record(
        "store: tables of a new run, against DeltaTable.create",
        peer / own,
        "x",
        at_least=1.5,
        peer=f"{own * 1e3:.0f} ms and {peer * 1e3:.0f} ms, which are not synced",
    )


def _made_by_deltalake(run: str) -> None:
    for table in TABLES:
        DeltaTable.create(table_uri(run, table), schema=delta_schema(table), name=table)


def _mean_by_table(stored: Run) -> dict[str, float]:
    means = stored.trajectories.group_by("domain").agg(pl.col("reward").mean()).collect()
    return dict(means.rows())


def _mean_by_ndjson(dump: Path) -> dict[str, float]:
    return dict(
        pl.scan_ndjson(dump).group_by("domain").agg(pl.col("reward").mean()).collect().rows()
    )


def _mean_by_json(dump: Path) -> dict[str, float]:
    rewards: dict[str, list[float]] = {}
    with dump.open() as stream:
        for line in stream:
            row = json.loads(line)
            rewards.setdefault(row["domain"], []).append(row["reward"])
    return {domain: sum(values) / len(values) for domain, values in rewards.items()}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def dictionaries(table: pa.Table) -> list[dict[str, Any]]:
    rows = table.to_pylist()
    return [
        {name: v.isoformat() if isinstance(v, datetime) else v for name, v in row.items()}
        for row in rows
    ]


def some_rows(rng: np.random.Generator, count: int, shortest: int, longest: int) -> pa.Table:
    """Trajectories of eight turns, each half observed and half generated, ids sampled by Zipf."""
    lengths = rng.integers(shortest, longest + 1, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    total = int(offsets[-1])
    weights = 1 / np.arange(1, _VOCABULARY + 1)
    acted = np.arange(total) // (shortest // 16) % 2 == 1
    tokens: dict[str, np.ndarray[Any, Any]] = {
        "token_ids": rng.choice(_VOCABULARY, total, p=weights / weights.sum()).astype(np.int32),
        "action_mask": acted,
        "logprobs": np.where(acted, -rng.exponential(1.0, total), 0).astype(np.float32),
        "token_versions": np.where(acted, 3, -1).astype(np.int32),
    }
    turn: dict[str, object] = {
        "start": 0,
        "end": 1,
        "observation": "row 1 column 2 of 4",
        "action": "up",
    }
    turn |= {"reward": 0.0, "generate_s": 0.8, "step_s": 0.01, "hardware": "H20"}
    turn |= {"worker": "generation-0", "finish_reason": "stop"}
    sampling: dict[str, object] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    sampling |= {"max_tokens": 64, "stop_token_ids": [1], "allowed_token_ids": []}
    values: dict[str, Any] = {"turns": [turn] * 8, "sampling": sampling, "reward_parts": None}
    columns = {}
    for field in row_schema("trajectories"):
        kind = field.type
        if field.name in tokens:
            flat = pa.array(tokens[field.name], kind.value_type)
            array = pa.ListArray.from_arrays(pa.array(offsets), flat).cast(kind)
        elif field.name in values:
            array = pa.array([values[field.name]] * count, kind)
        elif field.name == "domain":
            array = pa.array([("frozenlake", "arithmetic")[n % 2] for n in range(count)])
        elif pa.types.is_string(kind):
            array = pa.array([f"{field.name}-{n}" for n in range(count)])
        elif pa.types.is_floating(kind):
            array = pa.array(rng.random(count), kind)
        elif pa.types.is_list(kind):
            array = pa.nulls(count, kind)
        else:
            array = pa.array([_MOMENT if pa.types.is_timestamp(kind) else True] * count).cast(kind)
        columns[field.name] = array
    return pa.table(list(columns.values()), schema=row_schema("trajectories"))

"""The buffer of a run, over actor calls: put, durable commit, batch; beside it others in one run.

Rows are made before any clock starts: groups of eight trajectories of 1k-3k tokens, 64 rows a put.
Producer and consumer are this process; the buffer is a Ray actor, as in a run. The peers: JSONL
(append, fsync, glob, parse), and TransferQueue in memory, where the package `transferqueue` is
installed beside this one; it keeps nothing on disk, so only its put is compared.
"""

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.operators.buffer import BufferActor, BufferSettings
from rollart_flow.rows import from_ipc, to_ipc
from rollart_flow.runner.executors.ray_cluster import ray_cluster
from rollart_flow.store import RunInfo, RunStatus, RunWriter
from tests.benchmarks.bench_store import dictionaries, seconds, some_rows, through_jsonl
from tests.benchmarks.records import Record, record

ROWS = 64
PUTS = 48
GROUP = 8
BATCH = 128
IN_FLIGHT = 8
"""Puts that wait for their acknowledgement at a time."""
_TOKENS = ("token_ids", "action_mask", "logprobs", "token_versions")


def run() -> list[Record]:
    """Rates of the buffer and its peers; takes about a minute."""
    tables = list(some_tables())
    rows = ROWS * PUTS
    with tempfile.TemporaryDirectory() as folder, ray_cluster():
        put_s, through_s = asyncio.run(through_buffer(f"{folder}/run", tables))
        kept = [dictionaries(table) for table in tables[:12]]
        jsonl_s = seconds(lambda: through_jsonl(Path(folder) / "jsonl", kept)) * PUTS / 12
        queue_s = _through_transfer_queue(tables)
    records = [
        record(
            "buffer: put, committed, in a batch, read (64-row puts of 1k-3k tokens)",
            rows / through_s,
            "trajectories/s",
            at_least=2500,
        ),
        record(
            "buffer: the same against JSONL",
            jsonl_s / through_s,
            "x",
            at_least=5,
            peer=f"JSONL append+fsync+glob {rows / jsonl_s:.0f}/s",
        ),
        record("buffer: durable put alone", rows / put_s, "trajectories/s"),
    ]
    if queue_s is not None:
        records.append(
            record(
                "buffer: durable put against TransferQueue's put in memory",
                queue_s / put_s,
                "x",
                at_least=1,
                peer=f"TransferQueue {rows / queue_s:.0f}/s",
            )
        )
    return records


def some_tables() -> Iterator[pa.Table]:
    """Scored trajectories of whole groups, with ids of their own."""
    rng = np.random.default_rng(0)
    for number in range(PUTS):
        table = some_rows(rng, ROWS, 1000, 3000)
        places = [number * ROWS + row for row in range(ROWS)]
        groups = [f"g{place // GROUP:08d}" for place in places]
        attempts = [place % GROUP for place in places]
        values: dict[str, list[object]] = {
            "group_id": [*groups],
            "attempt": [*attempts],
            "trajectory_id": [f"{g}-{a:02d}" for g, a in zip(groups, attempts, strict=True)],
            "outcome": ["completed"] * ROWS,
            "reason": [None] * ROWS,
            "error": [None] * ROWS,
            "split": ["train"] * ROWS,
            "policy_version_start": [0] * ROWS,
            "policy_version_end": [0] * ROWS,
        }
        for name, column in values.items():
            place = table.schema.get_field_index(name)
            field = table.schema.field(place)
            table = table.set_column(place, field, pa.array(column, field.type))
        yield table


async def through_buffer(uri: str, tables: Sequence[pa.Table]) -> tuple[float, float]:
    """Seconds until every put was acknowledged, and until every batch was read."""
    RunWriter.create(uri, RunInfo("bench", "bench", 0)).close(RunStatus.INTERRUPTED)
    settings = BufferSettings(rollart(1), GROUP, commit_rows=4 * ROWS, commit_ms=50)
    buffer: Any = (
        ray.remote(BufferActor).options(num_cpus=0, max_concurrency=100).remote(uri, settings)
    )
    await buffer.start.remote()
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def put(table: pa.Table) -> None:
        async with slots:
            await buffer.put.remote(to_ipc(table))

    async def consume() -> None:
        for step in range(1, ROWS * PUTS // BATCH + 1):
            batch = await buffer.get_batch.remote(step, 0, BATCH)
            assert from_ipc(await buffer.rows.remote(batch)).num_rows == BATCH

    started = time.perf_counter()
    consumer = asyncio.create_task(consume())
    await asyncio.gather(*(put(table) for table in tables))
    put_s = time.perf_counter() - started
    await consumer
    through_s = time.perf_counter() - started
    await buffer.close.remote(RunStatus.FINISHED)
    return put_s, through_s


def _through_transfer_queue(tables: Sequence[pa.Table]) -> float | None:
    """Seconds to put the token columns and the reward into TransferQueue; None without it."""
    if importlib.util.find_spec("transfer_queue") is None:
        return None
    import torch
    import transfer_queue
    from omegaconf import OmegaConf
    from tensordict import TensorDict

    # Its controller and each of its units claim a CPU: with two units it waits for a third one.
    units = {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}
    transfer_queue.init(OmegaConf.create(units))
    batches = []
    for table in tables:
        fields: dict[str, Any] = {
            name: torch.nested.as_nested_tensor(
                [torch.tensor(row) for row in table[name].to_pylist()], layout=torch.jagged
            )
            for name in _TOKENS
        }
        fields["reward"] = torch.tensor(table["reward"].to_pylist())
        batches.append(
            (table["trajectory_id"].to_pylist(), TensorDict(fields, batch_size=table.num_rows))
        )
    started = time.perf_counter()
    for keys, batch in batches:
        transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=batch)
    elapsed = time.perf_counter() - started
    transfer_queue.close()
    return elapsed

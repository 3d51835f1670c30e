"""What is stored as data for others: memory of an export, and the cost of a draw.

A run of 50,000 rows is exported in a process of its own for each format, after 5,000 of its rows:
what the resident memory grows by in between is what grows with the number of rows. Draws of 64
rows are timed beside draws that open the tables of the run anew, in turns.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from rollart_flow import export_data
from rollart_flow.store import RunInfo, RunWriter
from rollart_flow.store.pins import PinnedTables, pin
from tests.benchmarks.bench_store import seconds, some_rows
from tests.benchmarks.records import Record, record

ROWS, FEW, BLOCK, TOKENS = 50_000, 5_000, 500, 128
COMMITS, STEPS = 200, 20
SETS = (("tokens", "parquet"), ("tokens", "jsonl"), ("conversations", "jsonl"),
        ("conversations", "hf"))  # fmt: skip
MOST_MB = 60
"""Most growth of an export, whose rows take several times as much as Arrow columns."""


def run() -> Iterator[Record]:
    """All records; takes about two minutes."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _exports(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield _draws(Path(folder))


def _exports(folder: Path) -> Iterator[Record]:
    rng = np.random.default_rng(0)
    block = some_rows(rng, BLOCK, TOKENS, TOKENS)
    for name in ("messages", "tools"):
        field = block.schema.field(name)
        empty = pa.nulls(BLOCK, field.type)
        block = block.set_column(block.schema.get_field_index(name), field, empty)
    with RunWriter.create(str(folder / "run"), RunInfo("run", "bench", 0)) as writer:
        for _ in range(ROWS // BLOCK):
            writer.commit("trajectories", block)
    for what, form in SETS:
        with get_context("spawn").Pool(1) as pool:
            few_mb, all_mb = pool.apply(peaks_mb, (str(folder), what, form))
        yield record(
            f"stored: growth of memory from an export of {FEW} rows to one of {ROWS}, {what} as "
            f"{form}",
            all_mb - few_mb,
            "MB",
            at_most=MOST_MB,
            peer=f"peak {few_mb:.0f} MB and {all_mb:.0f} MB; the rows are "
            f"{block.nbytes * (ROWS // BLOCK) / 1e6:.0f} MB as columns of Arrow",
        )


def peaks_mb(folder: str, what: str, form: str) -> tuple[float, float]:
    """Return the peak of this process's memory after the export of few rows, and of all [MB]."""
    found: list[float] = []
    for where in (f"seq <= {FEW}", None):
        to = Path(folder) / f"{what}-{form}-{len(found)}"
        export_data(f"{folder}/run", to, format=form, what=what, filter=where)  # type: ignore[arg-type]
        status = Path("/proc/self/status").read_text()  # getrusage has the peak of the parent, too
        found.append(int(status.split("VmHWM:")[1].split()[0]) / 1e3)
    return found[0], found[1]


def _draws(folder: Path) -> Record:
    """Rows of a step read from tables that stay open, and from tables that are opened for it."""
    rng = np.random.default_rng(1)
    block = some_rows(rng, 16, 256, 256)
    writer = RunWriter.create(str(folder / "run"), RunInfo("run", "bench", 0))
    for _ in range(COMMITS):
        writer.commit("trajectories", block)
    pinned = pin(writer.uri)
    kept = PinnedTables(pinned)
    times: dict[str, list[float]] = {"kept": [], "opened": []}
    for _ in range(STEPS):
        seqs = rng.choice(writer.last_seq, 64, replace=False) + 1
        times["kept"].append(seconds(partial(kept.rows, seqs.tolist())))
        times["opened"].append(seconds(partial(PinnedTables(pinned).rows, seqs.tolist())))
    writer.close()
    kept_s, opened_s = (median(each[1:]) for each in times.values())
    return record(
        f"stored: a draw of 64 rows from {COMMITS} commits, with tables opened for it, over one "
        "from tables that stay open",
        opened_s / kept_s,
        "x",
        at_least=1.5,
        peer=f"{opened_s * 1e3:.0f} ms and {kept_s * 1e3:.0f} ms",
    )

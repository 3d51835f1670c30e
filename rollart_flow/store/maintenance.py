"""Maintenance of a live run's tables: compaction, vacuum and log checkpoints, beside the writer.

Small files that are adjacent in seq are merged into one, in order, so that the files of a table
never overlap in seq and a batch is read from few of them. Maintenance never changes a row, moves
one of the writer's marks, or touches rows of an incomplete group; commits and readers continue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from rollart_flow.errors import StoreError
from rollart_flow.schema import stored_schema
from rollart_flow.store import files
from rollart_flow.store.encoding import STATISTICS, row_group_rows, statistics, writer_options
from rollart_flow.store.layout import table_uri
from rollart_flow.store.table import (
    commit_actions,
    data_files,
    delta_errors,
    file_name,
    new_file,
    open_table,
    removal,
)

RETENTION = timedelta(days=1)
"""How long compacted files are kept for readers that still hold a snapshot of them."""

_TARGET_BYTES = 64 << 20
_LEAST_FILES = 8
_CHECKPOINT_AFTER = 20
_GATHER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Maintained:
    """Result of the maintenance of one table."""

    merged: int
    """Files that were merged into larger ones."""
    vacuumed: int
    """Files whose bytes were removed."""
    checkpoint: int
    """Delta version of the newest known checkpoint."""


def maintain_table(
    run: str, table: str, complete: int, retention: timedelta, checkpoint: int
) -> Maintained:
    """Merge small files, vacuum if any were merged, and checkpoint the log if it has grown.

    Args:
        run: address of the run.
        table: name of the table.
        complete: highest seq to compact; files with later rows are left alone.
        retention: how long merged files are kept.
        checkpoint: Delta version of the newest known checkpoint.

    Raises:
        StoreError: storage failed; the rows of the table are unchanged.
    """
    handle = open_table(run, table)
    uri = table_uri(run, table)
    merged = 0
    with delta_errors(f"{table}: cannot compact {uri}"):
        settled = [file for file in data_files(handle) if file["max.seq"] <= complete]
        for neighbours in mergeable(settled):
            _merge(handle, uri, table, neighbours)
            merged += len(neighbours)
    vacuumed = _vacuum(handle, uri, table, retention) if merged else 0
    with delta_errors(f"{table}: cannot checkpoint {uri}"):
        newest = open_table(run, table)
        if newest.version() - checkpoint >= _CHECKPOINT_AFTER:
            newest.create_checkpoint()
            checkpoint = newest.version()
    return Maintained(merged, vacuumed, checkpoint)


def _vacuum(handle: DeltaTable, uri: str, table: str, retention: timedelta) -> int:
    """Remove files past retention.

    With a retention of an hour or more, files that were never committed are removed too: the
    files of a commit in progress are younger than that.
    """
    with delta_errors(f"{table}: cannot vacuum {uri}"):
        removed = handle.vacuum(
            retention_hours=int(retention / timedelta(hours=1)),
            dry_run=False,
            enforce_retention_duration=False,
            full=retention >= timedelta(hours=1),
        )
    return len(removed)


def mergeable(live: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Sequences of adjacent files, in order of seq, that are each worth merging into one file."""
    runs: list[list[dict[str, Any]]] = []
    current: list[dict[str, Any]] = []
    size = 0
    for file in live:
        if current and size + file["size_bytes"] > _TARGET_BYTES:
            runs.append(current)
            current, size = [], 0
        current.append(file)
        size += file["size_bytes"]
    runs.append(current)
    return [run for run in runs if len(run) >= _LEAST_FILES]


def _read(uri: str, schema: pa.Schema) -> pa.Table:
    data = files.read(uri)
    if data is None:
        raise StoreError(f"{uri} is not there any more")
    return pq.read_table(pa.BufferReader(data), schema=schema)


def _merge(handle: DeltaTable, uri: str, table: str, small: Sequence[dict[str, Any]]) -> None:
    """Rewrite adjacent files as one, with a few row groups in memory at a time."""
    schema = stored_schema(table)
    sink = pa.BufferOutputStream()
    gathered: list[pa.Table] = []
    described: list[pa.Table] = []
    with pq.ParquetWriter(sink, schema, **writer_options(table)) as writer:
        for number, file in enumerate(small, start=1):
            gathered.append(_read(files.join(uri, file["path"]), schema))
            gathered_bytes = sum(rows.nbytes for rows in gathered)
            if gathered_bytes >= _GATHER_BYTES or number == len(small):
                rows = pa.concat_tables(gathered)
                gathered.clear()
                described.append(rows.select([n for n in STATISTICS if n in schema.names]))
                writer.write_table(rows, row_group_size=row_group_rows(rows))
    data = sink.getvalue()
    path = file_name()
    files.write_new(files.join(uri, path), memoryview(data))
    merged = new_file(data.size, path, statistics(pa.concat_tables(described)), data_change=False)
    commit_actions(handle, table, [merged, *(removal(f, data_change=False) for f in small)])
    handle.update_incremental()

"""Maintenance of a run's tables beside its writer: merging, vacuum, checkpoints of the log.

Small files that are adjacent in seq are merged into one, in order, so that the files of a table
never overlap in seq and a batch is read from few of them. Files are merged by size tiers: a merge
moves its rows up by a tier at least, so that a row is rewritten a few times however long the run
is. What no reader needs is removed after a retention: replaced files, files that an earlier writer
left behind, and log entries before a checkpoint (`unused_files`). Maintenance never changes a row,
moves one of the writer's marks, or touches rows of an incomplete group; commits and readers go on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from rollart_flow.errors import FencedError, StoreError
from rollart_flow.schema import stored_schema
from rollart_flow.store import files
from rollart_flow.store.away import repeated_query
from rollart_flow.store.encoding import (
    STATISTICS,
    data_file,
    file_name,
    row_group_rows,
    writer_options,
)
from rollart_flow.store.table import DataFile, delta_errors, open_table
from rollart_flow.store.table_log import TableLog
from rollart_flow.store.unused_files import UnusedFiles, checkpoint_file

Merge = Callable[[str, str, Sequence[DataFile]], DataFile]
"""Function that writes adjacent files of a table as one, as `merged` does."""

RETENTION = timedelta(minutes=10)
"""How long replaced files and log entries are kept for readers that use them."""

_LARGE = 4 << 20
"""Size from which a file stays as it is [bytes]: a commit of a run that ends thousands of long
trajectories a second has it, and reading and writing its rows again costs twice what they cost."""
_LARGEST = 64 << 20
"""Size at which no further file is added to a merge [bytes]."""
_TIERS = ((64 << 10, 64 << 10), (1 << 20, 1 << 20), (_LARGE, _LARGEST))
"""Size below which a file is of a tier, and size of neighbours together that are merged [bytes].
Each tier rewrites its rows once, and has at most as many live files as the ratio of its sizes."""
_LEAST_FILES = 8
_CHECKPOINT_AFTER = 100
_LEAST_ENTRIES = 20
"""Versions that the last checkpoint of a run is worth."""
_GATHER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Maintained:
    """Numbers of files of one table that maintenance handled."""

    merged: int
    """Files that were merged into larger ones."""
    vacuumed: int
    """Data files and log files that were removed."""


class TableMaintenance:
    """Maintains one table of the writer's run. One thread at a time may call it.

    Args:
        log: the table, as its writer sees it; the writer has just taken over.
        lock: the writer's lock, held while the log is changed.
        merge: writes the rows of adjacent files as one.
    """

    def __init__(self, log: TableLog, lock: AbstractContextManager[object], merge: Merge) -> None:
        self._log = log
        self._lock = lock
        self._write_merged = merge
        self._unused = UnusedFiles(log)

    def run(self, complete: int, retention: timedelta, *, final: bool = False) -> Maintained:
        """Merge small files, checkpoint the log if it has grown, and remove what is not used.

        Args:
            complete: highest seq to merge; files with later rows are left alone.
            retention: how long files are kept after they were replaced.
            final: no rows will follow, so merge and checkpoint what otherwise would wait for more.

        Raises:
            FencedError: another writer has taken over.
            StoreError: storage failed; the rows of the table are unchanged.
        """
        try:
            merged = self._merge_all(complete, final=final)
        finally:  # neither needs merging, and a full disk needs them most
            try:
                entries = self._log.version - self._unused.newest_checkpoint
                if entries >= (_LEAST_ENTRIES if final else _CHECKPOINT_AFTER):
                    self._checkpoint()
            finally:
                vacuumed = self._vacuum(retention)
        return Maintained(merged, vacuumed)

    def _merge_all(self, complete: int, *, final: bool) -> int:
        """Merge what is worth it; return the number of files that were merged."""
        merged = 0
        while found := mergeable(self._settled(complete), final=final):
            for neighbours in found:
                self._merge(neighbours)
                merged += len(neighbours)
        return merged

    def _settled(self, complete: int) -> list[DataFile]:
        with self._lock:
            return [file for file in self._log.files if file.last_seq <= complete]

    def _merge(self, neighbours: Sequence[DataFile]) -> None:
        log = self._log
        doing = f"{log.table}: cannot merge files of {log.uri}"
        try:
            with delta_errors(doing):
                new = self._write_merged(log.uri, log.table, neighbours)
        except pa.ArrowException as error:  # a data file is damaged
            raise StoreError(f"{doing}: {files.one_line(error)}") from error
        with self._lock:
            log.replace(neighbours, new)
        self._unused.replace(neighbours)

    def _checkpoint(self) -> None:
        log = self._log
        with delta_errors(f"{log.table}: cannot checkpoint {log.uri}"):
            handle = open_table(log.run, log.table)
            repeated_query(f"checkpoint {log.uri}", handle.create_checkpoint)
        # deltalake does not sync it, and the entries before it will be removed.
        files.sync(log.uri, checkpoint_file(handle.version()), "_delta_log/_last_checkpoint")
        self._unused.checkpoint(handle.version())

    def _vacuum(self, retention: timedelta) -> int:
        return self._unused.remove(retention)


class RunMaintenance:
    """Maintains all tables of a run for its writer. One thread at a time may call it."""

    def __init__(
        self, logs: Mapping[str, TableLog], lock: AbstractContextManager[object], merge: Merge
    ) -> None:
        """Maintain the table of each log, as `TableMaintenance` does."""
        self._tables = {table: TableMaintenance(log, lock, merge) for table, log in logs.items()}

    def run(self, complete: int, retention: timedelta, *, final: bool) -> dict[str, Maintained]:
        """Maintain all tables, also those after one that failed; see `TableMaintenance.run`.

        Raises:
            FencedError: another writer has taken over.
            StoreError: storage failed; the rows of the tables are unchanged.
        """
        done, failed = {}, []
        for table, maintenance in self._tables.items():
            try:
                done[table] = maintenance.run(complete, retention, final=final)
            except FencedError:
                raise
            except StoreError as error:  # the other tables do not need this one
                failed.append(str(error))
        if failed:
            raise StoreError("; ".join(failed))
        return done


def mergeable(live: Sequence[DataFile], *, final: bool = False) -> list[list[DataFile]]:
    """Sequences of adjacent files, in order of seq, that are each worth merging into one file.

    Files of a tier are merged if they are of a higher one together, so that every merge moves its
    rows up a tier; or if there are many of the lowest tier.

    Args:
        live: files in order of seq.
        final: merge all small neighbours, since no files will follow.
    """
    if final:
        return [run for run in _neighbours(live, _LARGE) if len(run) > 1]
    for below, together in _TIERS:
        found = [
            run
            for run in _neighbours(live, below)
            if (len(run) > 1 and _size(run) >= together)
            or (len(run) >= _LEAST_FILES and below == _TIERS[0][0])
        ]
        if found:
            return found
    return []


def _neighbours(live: Sequence[DataFile], below: int) -> list[list[DataFile]]:
    """Sequences of adjacent files below a size [bytes], each ended when it has the largest size."""
    runs: list[list[DataFile]] = [[]]
    size = 0
    for file in live:
        small = file.size_bytes < below
        if not small or size >= _LARGEST:
            runs.append([])
            size = 0
        if small:
            runs[-1].append(file)
            size += file.size_bytes
    return runs


def _size(run: Sequence[DataFile]) -> int:
    return sum(file.size_bytes for file in run)


def _row_groups(uri: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a data file by row group, with columns that an older file lacks as null."""
    data = files.read(uri)
    if data is None:
        raise StoreError(f"{uri} is not there any more")
    # `pyarrow.dataset` would import pandas.
    file = pq.ParquetFile(pa.BufferReader(data))
    there = set(file.schema_arrow.names)
    for number in range(file.num_row_groups):
        found = file.read_row_group(number, use_threads=False)
        columns = [
            _as_type(found[field.name], field.type)
            if field.name in there
            else pa.nulls(found.num_rows, field.type)
            for field in schema
        ]
        yield pa.Table.from_arrays(columns, schema=schema)


def _as_type(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == wanted else column.cast(wanted)


def merged(uri: str, table: str, small: Sequence[DataFile]) -> DataFile:
    """Write the rows of adjacent files as one, with a few row groups in memory at a time.

    Args:
        uri: folder of the table.
        table: name of the table.
        small: the files, in order of seq.
    """
    schema = stored_schema(table)
    sink = pa.BufferOutputStream()
    gathered: list[pa.Table] = []
    gathered_bytes = 0
    described: list[pa.Table] = []
    with pq.ParquetWriter(sink, schema, **writer_options(table)) as writer:

        def write() -> None:
            rows = pa.concat_tables(gathered)
            described.append(rows.select([n for n in STATISTICS if n in schema.names]))
            writer.write_table(rows, row_group_size=row_group_rows(rows))

        for file in small:
            for rows in _row_groups(files.join(uri, file.path), schema):
                gathered.append(rows)
                gathered_bytes += rows.nbytes
                if gathered_bytes >= _GATHER_BYTES:
                    write()
                    gathered, gathered_bytes = [], 0
        if gathered:
            write()
    data = sink.getvalue()
    path = file_name()
    files.write_new(files.join(uri, path), memoryview(data))
    return data_file(path, data.size, pa.concat_tables(described))

"""Rows as data files: numbered, stamped, and encoded as Parquet.

A data file is not visible until the writer adds it to the log of its table. The encodings make
token columns small and fast to write: numbers inside lists (token ids, logprobs, versions) are
split into byte streams before they are compressed, so that the upper bytes of small ids and the
exponents of logprobs compress well, in a third of the time that a dictionary takes. Strings get
dictionaries. Files of a commit are compressed by lz4, which is fast, unless they are so large that
nobody will merge them: these, and merged files, by zstd, which is small. Encodings follow from the
declared types, so that no column is named here. The files leave out the Arrow schema, which
`schemas/*.json` declares and which would be larger than a small commit.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollart_flow.errors import StoreAwayError, StoreError
from rollart_flow.schema import TABLES, check, stored_schema
from rollart_flow.store import files
from rollart_flow.store.layout import table_uri
from rollart_flow.store.table import DataFile

Span = tuple[int, int]
"""(first, last) seq of committed rows; last is first - 1 if there are none."""

STATISTICS = ("seq", "step", "policy_version", "policy_version_start")
"""Columns whose minimum and maximum per file are in the Delta log, for readers to prune files."""


class RowsElsewhere(Protocol):
    """Uncommitted rows of one table that other processes hold, and write as data files."""

    @property
    def num_rows(self) -> int: ...

    def write(self, first_seq: int, clock_us: int) -> list[DataFile]:
        """Write the rows durably, and return their files in order of seq.

        Args:
            first_seq: seq of the first row; those of the others follow it without a gap.
            clock_us: `committed_at` of the rows, as in `stamp`.

        Raises:
            RowsLostError: a process died with its rows; nothing is committed.
            StoreError: storage failed.
        """
        ...


Rows: TypeAlias = "pa.Table | RowsElsewhere"
"""Uncommitted rows of one table."""

_ROW_GROUP_BYTES = 4 << 20
_LASTING_BYTES = 16 << 20
"""Size of rows in memory from which their file is written as one that lasts."""
_ROW_GROUP_ROWS = 1 << 18


@cache
def writer_options(table: str) -> dict[str, Any]:
    """Arguments of `pq.ParquetWriter` for a table."""
    dictionaries: list[str] = []
    splits: dict[str, str] = {}
    scalars: list[str] = []
    for field in stored_schema(table):
        for path, leaf, in_list in _leaves(field.name, field.type, False):
            if pa.types.is_string(leaf):
                dictionaries.append(path)
            elif in_list and (pa.types.is_int32(leaf) or pa.types.is_float32(leaf)):
                splits[path] = "BYTE_STREAM_SPLIT"
            if not in_list:
                scalars.append(path)
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionaries or False,
        "column_encoding": splits or None,
        "write_statistics": scalars,
        "store_schema": False,
    }


def _leaves(path: str, kind: pa.DataType, in_list: bool) -> list[tuple[str, pa.DataType, bool]]:
    """(Parquet path, type, whether inside a list) of every leaf of a column."""
    if pa.types.is_list(kind):
        return _leaves(f"{path}.list.element", kind.value_type, True)
    if pa.types.is_struct(kind):
        return [leaf for f in kind for leaf in _leaves(f"{path}.{f.name}", f.type, in_list)]
    return [(path, kind, in_list)]


def row_group_rows(rows: pa.Table) -> int:
    """Rows per row group: about 4 MiB in memory, so that a reader can skip within a file."""
    mean_bytes: int = max(1, rows.nbytes // max(1, rows.num_rows))
    return max(64, min(_ROW_GROUP_ROWS, _ROW_GROUP_BYTES // mean_bytes))


def encode(table: str, rows: pa.Table) -> pa.Buffer:
    """Encode stored rows as one Parquet file; few rows faster than in files that last."""
    sink = pa.BufferOutputStream()
    options = dict(writer_options(table))
    if rows.nbytes < _LASTING_BYTES:
        options.update(compression="lz4", compression_level=None)
    with pq.ParquetWriter(sink, stored_schema(table), **options) as writer:
        writer.write_table(rows, row_group_size=row_group_rows(rows))
    return sink.getvalue()


def data_file(path: str, size_bytes: int, rows: pa.Table) -> DataFile:
    """Describe a data file that was just written; its rows are in order of seq.

    Args:
        path: path within the folder of the table.
        size_bytes: size of the file.
        rows: rows of the file, with the columns of `STATISTICS` at least.
    """
    seqs = rows["seq"]
    return DataFile(path, size_bytes, seqs[0].as_py(), seqs[-1].as_py(), statistics(rows))


def file_name() -> str:
    """A unique name for a data file."""
    return f"part-{uuid.uuid4()}.parquet"


def statistics(rows: pa.Table) -> str:
    """The file statistics of the Delta log (JSON) for the columns of `STATISTICS`."""
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    nulls: dict[str, int] = {}
    for name in STATISTICS:
        if name not in rows.column_names:
            continue
        nulls[name] = rows[name].null_count
        if nulls[name] < rows.num_rows:
            bounds = pc.min_max(rows[name]).as_py()
            least[name], greatest[name] = bounds["min"], bounds["max"]
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": least,
            "maxValues": greatest,
            "nullCount": nulls,
        }
    )


def checked_rows(rows: Mapping[str, Rows]) -> dict[str, Rows]:
    """Check rows against their tables; those of other processes were checked there.

    Raises:
        SchemaError: see `schema.check`.
    """
    return {
        t: check(t, given) if isinstance(given, pa.Table) else given for t, given in rows.items()
    }


def in_closing_order(rows: Mapping[str, Rows]) -> dict[str, Rows]:
    """Sort tables into the order in which they are committed.

    `steps` comes last, so that rows committed together with a step have a lower seq than the row
    of the step, and belong to `as_of(step)`.
    """
    return {table: rows[table] for table in sorted(TABLES, key="steps".__eq__) if table in rows}


def number(rows: Mapping[str, Rows], after: int) -> dict[str, Span]:
    """Assign the rows of each table their seqs, all above `after`."""
    spans = {}
    for table, added in rows.items():
        spans[table] = (after + 1, after + added.num_rows)
        after += added.num_rows
    return spans


def stamp(
    rows: Mapping[str, pa.Table], spans: Mapping[str, Span], clock_us: int
) -> dict[str, pa.Table]:
    """Add the columns `seq` and `committed_at` (microseconds since 1970, UTC) to checked rows."""
    stamped = {}
    for table, added in rows.items():
        schema = stored_schema(table)
        first, last = spans[table]
        at = pa.scalar(clock_us, schema.field("committed_at").type)
        columns = dict(zip(added.column_names, added.columns, strict=True)) | {
            "seq": pa.array(np.arange(first, last + 1, dtype=np.int64)),
            "committed_at": pa.repeat(at, added.num_rows),
        }
        stamped[table] = pa.table([columns[name] for name in schema.names], schema=schema)
    return stamped


def write_files(run: str, rows: Mapping[str, pa.Table]) -> dict[str, DataFile]:
    """Write stamped rows as one data file per table, in order of the tables.

    Raises:
        StoreError: storage failed; files that were written are removed.
    """
    written: list[str] = []
    added = {}
    try:
        for table, stamped in rows.items():
            data = encode(table, stamped)
            path = file_name()
            written.append(files.join(table_uri(run, table), path))
            files.write_new(written[-1], memoryview(data))
            added[table] = data_file(path, data.size, stamped)
    except StoreAwayError as error:  # what was written is removed by maintenance
        raise StoreAwayError(f"{table}: {error}") from error
    except StoreError as error:
        for uri in written:
            with suppress(StoreError):
                files.remove(uri)
        raise StoreError(f"{table}: {error}") from error
    return added


def write_rows(
    run: str, rows: Mapping[str, Rows], spans: Mapping[str, Span], clock_us: int
) -> dict[str, list[DataFile]]:
    """Write numbered rows as data files, here or where they are, in order of the tables.

    Raises:
        RowsLostError: a process died with its rows.
        StoreError: storage failed.
    """
    elsewhere = {
        table: given.write(spans[table][0], clock_us)
        for table, given in rows.items()
        if not isinstance(given, pa.Table)
    }
    here = {table: given for table, given in rows.items() if isinstance(given, pa.Table)}
    written = write_files(run, stamp(here, spans, clock_us))
    return {t: elsewhere[t] if t in elsewhere else [written[t]] for t in rows}

"""A group of rows on its way into the tables: numbered, stamped, and written as data files.

Nothing here commits: until the writer names the files in the tables' logs, nobody sees them.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
import pyarrow as pa
from deltalake.transaction import AddAction

from rollart_flow.errors import StoreError
from rollart_flow.schema import TABLES, stored_schema
from rollart_flow.store import files
from rollart_flow.store.encoding import encode, statistics
from rollart_flow.store.layout import table_uri
from rollart_flow.store.table import file_name, new_file

Span = tuple[int, int]
"""(first, last) seq of committed rows; last is first - 1 where there were none."""


def in_closing_order(rows: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The same, in the order in which tables are committed.

    `steps` comes last, so that what is committed with a step has a lower seq than its row and
    belongs to `as_of(step)`.
    """
    return {table: rows[table] for table in sorted(TABLES, key="steps".__eq__) if table in rows}


def number(rows: Mapping[str, pa.Table], after: int) -> dict[str, Span]:
    """The seqs that the rows of each table get, all above `after`."""
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


def write_files(run: str, rows: Mapping[str, pa.Table]) -> dict[str, AddAction]:
    """Write stamped rows as one data file per table; the log entries that would add them.

    Raises:
        StoreError: storage failed; what was written is removed.
    """
    written: list[str] = []
    added = {}
    try:
        for table, stamped in rows.items():
            data = encode(table, stamped)
            path = file_name()
            written.append(files.join(table_uri(run, table), path))
            files.write_new(written[-1], memoryview(data))
            added[table] = new_file(data.size, path, statistics(stamped), data_change=True)
    except StoreError as error:
        for uri in written:
            with suppress(StoreError):
                files.remove(uri)
        raise StoreError(f"{table}: {error}") from error
    return added

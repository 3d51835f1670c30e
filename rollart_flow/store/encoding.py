"""Rows as Parquet bytes, with encodings that make token columns small and fast to write.

Numbers inside lists (token ids, logprobs, versions) are split into byte streams before zstd: the
upper bytes of small ids and the exponents of logprobs then compress well, at a third of the time
that a dictionary takes. Strings get dictionaries. Encodings follow from the declared types, so
that no column is named here. The Arrow schema is left out of the files: `schemas/*.json` declares
it, and it would weigh more than a small commit.
"""

import json
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollart_flow.schema import stored_schema

STATISTICS = ("seq", "step", "policy_version", "policy_version_start")
"""Columns whose least and greatest value per file stand in the Delta log; readers prune by them."""

_ROW_GROUP_BYTES = 4 << 20
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
    """Stored rows as the bytes of one Parquet file."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, stored_schema(table), **writer_options(table)) as writer:
        writer.write_table(rows, row_group_size=row_group_rows(rows))
    return sink.getvalue()


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

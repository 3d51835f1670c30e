"""Descriptions of rows that buffer writers hold.

A description is a table with the columns from which the buffer decides, and two more that tell
where each row is. Only data files and batches need the rows themselves.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.operators.filters import NamedFilter
from rollart_flow.rows import SAMPLE_COLUMNS
from rollart_flow.schema import row_schema

TOKENS, HELD_BY, HELD_AT = "tokens", "held_by", "held_at"
"""Columns of a description: number of tokens, number of the writer, and place in the writer."""
IN_TABLE = -1
"""Number in place of a writer's, for rows that are read from the table."""


def without_diffs(rows: pa.Table) -> pa.Table:
    """Return rows without the column `diff`, which is long and which no trainer reads."""
    return rows.drop_columns(["diff"]) if "diff" in rows.column_names else rows


def filter_columns(filters: Sequence[NamedFilter]) -> tuple[str, ...]:
    """Columns of `trajectories` that filters read: all, if a filter selects some by a rule."""
    columns = row_schema("trajectories").names
    expressions = [each.expression.meta for each in filters]
    if any(expression.has_multiple_outputs() for expression in expressions):
        return tuple(columns)
    named = {name for expression in expressions for name in expression.root_names()}
    return tuple(name for name in columns if name in named)


def describe(
    rows: pa.Table, columns: Sequence[str], writer: int = IN_TABLE, first: int = 0
) -> pa.Table:
    """Describe rows that a writer holds at adjacent places from `first` on.

    Args:
        rows: rows of `trajectories`.
        columns: columns to keep besides those from which samples are made.
        writer: number of the writer.
        first: place of the first row.
    """
    count = rows.num_rows
    described = rows.select(list(dict.fromkeys((*SAMPLE_COLUMNS, *columns))))
    described = described.append_column(TOKENS, pc.list_value_length(rows["token_ids"]))
    described = described.append_column(HELD_BY, pa.array([writer] * count, pa.int32()))
    return described.append_column(HELD_AT, pa.array(range(first, first + count), pa.int64()))


def places_of(described: pa.Table) -> Iterator[tuple[str, int, int]]:
    """Id, writer and place of each row."""
    columns = (described[name].to_pylist() for name in ("trajectory_id", HELD_BY, HELD_AT))
    return zip(*columns, strict=True)

"""Columns of rows that are drawn from what is stored, and such rows beside those of a buffer."""

from collections.abc import Sequence

import pyarrow as pa

from rollart_flow.operators.batch_columns import EXEMPT, SOURCE_COLUMNS
from rollart_flow.operators.row_descriptions import without_diffs
from rollart_flow.schema import stored_schema


def drawn_schema() -> pa.Schema:
    """Schema of drawn rows: `trajectories` without diffs, and further columns of a batch."""
    batches = stored_schema("batches")
    own = without_diffs(stored_schema("trajectories").empty_table()).schema
    more = [batches.field(name) for name in ("staleness", *SOURCE_COLUMNS)]
    committed = [field for field in own if field.name != "seq"]
    return pa.schema([*committed, *more, pa.field(EXEMPT, pa.bool_())])


def with_drawn(rows: pa.Table, drawn: Sequence[pa.Table]) -> pa.Table:
    """Append drawn rows to those that were made for a batch, whose columns of a source are null."""
    if not drawn:
        return rows
    schema = drawn_schema()
    parts = [rows, *drawn]
    return pa.concat_tables([_aligned(part, schema) for part in parts])


def _aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))

"""Filters of a pipeline, evaluated on uncommitted rows of `trajectories`."""

from collections.abc import Sequence

import polars as pl
import pyarrow as pa


def keeps(expressions: Sequence[pl.Expr], rows: pa.Table) -> list[bool]:
    """For each row, whether all expressions are true of it; null is not true."""
    if not expressions:
        return [True] * rows.num_rows
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    kept = pl.all_horizontal([expression.fill_null(False) for expression in expressions])
    return frame.with_columns(kept.alias("kept"))["kept"].to_list()

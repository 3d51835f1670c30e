"""Evaluation of a pipeline's filters on uncommitted rows of `trajectories`."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class NamedFilter:
    """Name and expression of a pipeline's `filter` node."""

    name: str
    expression: pl.Expr


def refusals(filters: Sequence[NamedFilter], rows: pa.Table) -> list[str | None]:
    """Return, for each row, the name of the first filter that refuses it, or None if all pass.

    A filter refuses a row if its expression is false or null for that row.
    """
    if not filters or not rows.num_rows:
        return [None] * rows.num_rows
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    refuses = [
        pl.when(~each.expression.fill_null(False)).then(pl.lit(each.name)) for each in filters
    ]
    return frame.with_columns(pl.coalesce(refuses).alias("by"))["by"].to_list()


def group_refusal(filters: Sequence[NamedFilter], rows: pa.Table) -> str | None:
    """Return the name of a filter that refuses a member of a group, or None if all pass."""
    return next((name for name in refusals(filters, rows) if name is not None), None)

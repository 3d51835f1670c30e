"""Filters of a pipeline, evaluated on uncommitted rows of `trajectories`."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class NamedFilter:
    """A node `filter` of a pipeline."""

    name: str
    expression: pl.Expr


def refusals(filters: Sequence[NamedFilter], rows: pa.Table) -> list[str | None]:
    """For each row, the name of the first filter that is not true of it; null is not true."""
    if not filters or not rows.num_rows:
        return [None] * rows.num_rows
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    refuses = [
        pl.when(~each.expression.fill_null(False)).then(pl.lit(each.name)) for each in filters
    ]
    return frame.with_columns(pl.coalesce(refuses).alias("by"))["by"].to_list()


def group_refusal(filters: Sequence[NamedFilter], rows: pa.Table) -> str | None:
    """The name of the first filter that is not true of every member of a group; None: kept."""
    return next((name for name in refusals(filters, rows) if name is not None), None)

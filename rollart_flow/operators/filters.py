"""Evaluation of a pipeline's filters on uncommitted rows of `trajectories`.

An episode of several branches is one row (`episode_rows.as_episodes`).

Invariant: a filter that raises for a row refuses that row and no other; the run goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from rollart_flow.text import one_line

_RAISED = (Exception, pl.exceptions.PanicException)
"""Errors that an expression may raise for the values of a row: users write expressions."""


@dataclass(frozen=True, slots=True, eq=False)
class NamedFilter:
    """Name and expression of a pipeline's `filter` node."""

    name: str
    expression: pl.Expr


def refusals(filters: Sequence[NamedFilter], rows: pa.Table) -> list[str | None]:
    """Return, for each row, the name of the first filter that refuses it, or None if all pass.

    A filter refuses a row if its expression is false or null for that row, or raises; the error
    then follows the name.
    """
    if not filters or not rows.num_rows:
        return [None] * rows.num_rows
    frame = _frame(rows)
    try:
        return _refusals(filters, frame)
    except _RAISED:
        return [_refusal(filters, row) for row in frame.iter_slices(1)]


def group_refusal(filters: Sequence[NamedFilter], rows: pa.Table) -> str | None:
    """Return the name of a filter that refuses a member of a group, or None if all pass."""
    return _refusal(filters, _frame(rows))


def _frame(rows: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _refusals(filters: Sequence[NamedFilter], frame: pl.DataFrame) -> list[str | None]:
    refuses = [
        pl.when(~each.expression.fill_null(False)).then(pl.lit(each.name)) for each in filters
    ]
    return frame.with_columns(pl.coalesce(refuses).alias("by"))["by"].to_list()


def _refusal(filters: Sequence[NamedFilter], frame: pl.DataFrame) -> str | None:
    """Return the first filter that refuses any of some rows, with its error if it raised."""
    for each in filters:
        try:
            refused = _refusals([each], frame)
        except _RAISED as error:
            return one_line(f"{each.name} (raised {type(error).__name__}: {one_line(error, 200)})")
        if any(name is not None for name in refused):
            return each.name
    return None

"""Spreads of columns, over all rows and by the values of a label."""

from collections.abc import Iterator

import polars as pl

from rollart_flow.metrics.catalog import METRICS
from rollart_flow.metrics.figures import Figure, figure


def first_rows(trajectories: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each attempt: its branch 0."""
    return trajectories.filter(pl.col("branch").fill_null(0) == 0)


def spread(name: str, column: pl.DataFrame) -> Iterator[Figure]:
    """Give the mean of a frame's one column with what the metric has beside it, if it has any."""
    values = column.to_series().drop_nulls().cast(pl.Float64)
    if not values.len():
        return
    found = values.mean(), values.min(), values.max(), float(values.len())
    mean, *beside = (float(value) for value in found)  # type: ignore[arg-type]  # none is empty
    yield figure(name, mean, beside=tuple(beside) if METRICS[name].beside else ())


def by_label(
    name: str, rows: pl.DataFrame, value: pl.Expr, label: str = "domain"
) -> Iterator[Figure]:
    """Give the spread of a value over all rows, then for each value of a label's column."""
    frame = rows.select(pl.col(label).alias("_label"), value.alias("_value")).drop_nulls("_value")
    if not frame.height:
        return
    yield from spread(name, frame.select("_value"))
    column = pl.col("_value").cast(pl.Float64)
    stats = frame.group_by("_label").agg(
        mean=column.mean(), low=column.min(), high=column.max(), count=pl.len()
    )
    beside = bool(METRICS[name].beside)
    for which, mean, low, high, count in stats.sort("_label").iter_rows():
        yield figure(name, mean, which, beside=(low, high, count) if beside else ())

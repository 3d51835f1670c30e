"""Expressions over columns of `trajectories` that several figures of the accounting share."""

import polars as pl

FIRST = pl.col("branch").fill_null(0) == 0
"""Whether a row is the first one of its attempt, which has the attempt's seconds."""


def of_turns(field: str) -> pl.Expr:
    """Return the list of a field of each turn."""
    return pl.col("turns").list.eval(pl.element().struct.field(field))


def summed(field: str) -> pl.Expr:
    """Return the sum of a field over the turns of a row."""
    return of_turns(field).list.sum()


def seconds_between(begin: str, end: str) -> pl.Expr:
    """Return the seconds between two moments; moments of two clocks that differ a little give 0."""
    return (pl.col(end) - pl.col(begin)).dt.total_microseconds().clip(lower_bound=0) / 1e6

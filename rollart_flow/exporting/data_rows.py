"""Choice of the rows of a data set, and their reading, some at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rollart_flow.errors import QueryError
from rollart_flow.store import Snapshot, files


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows of a data set."""

    tables: Snapshot
    """The tables of the run, at one moment."""
    seqs: pl.Series
    """seq of each row, ascending."""
    left_out: int
    """Rows that met the filter, but have no turn."""
    counts: list[tuple[Any, ...]]
    """Domain, outcome, number of rows, and their mean reward."""

    @classmethod
    def of(cls, tables: Snapshot, where: pl.Expr | None) -> "ChosenRows":
        """Return the rows that meet a condition; all rows with a turn without one.

        Raises:
            QueryError: the condition is wrong.
        """
        rows = tables.trajectories if where is None else tables.trajectories.filter(where)
        told = pl.col("turns").list.len() > 0
        try:
            found = rows.select("seq", "domain", "outcome", "reward", told.alias("told")).collect(
                engine="streaming"
            )
        except pl.exceptions.PolarsError as error:
            raise QueryError(f"filter: {files.one_line(error)}") from error
        kept = found.filter("told")
        counts = kept.group_by("domain", "outcome").agg(
            pl.len(), pl.col("reward").mean().round(4).alias("mean")
        )
        ordered = counts.sort("domain", "outcome").rows()
        return cls(tables, kept["seq"].sort(), found.height - kept.height, ordered)

    def read(self, columns: Sequence[str], at_once: int) -> Iterator[pl.DataFrame]:
        """Yield the rows in order of seq, some at a time."""
        for start in range(0, self.seqs.len(), at_once):
            seqs = self.seqs[start : start + at_once]
            near = pl.col("seq").is_between(seqs[0], seqs[-1])  # files without such rows are left
            rows = self.tables.trajectories.filter(near, pl.col("seq").is_in(seqs.to_list()))
            yield rows.select(columns).collect().sort("seq")


def trained_turns(rows: pl.DataFrame) -> list[list[bool]]:
    """Return by row, and turn, whether a token of the turn is an action that is trained on."""
    masks = rows["action_mask"]
    flat = masks.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    before = np.concatenate([[0], np.cumsum(flat, dtype=np.int64)])
    starts = np.concatenate([[0], np.cumsum(masks.list.len().cast(pl.Int64).to_numpy())])[:-1]
    return [
        [bool(before[at + turn["end"]] > before[at + turn["start"]]) for turn in turns]
        for at, turns in zip(starts, rows["turns"].to_list(), strict=True)
    ]

"""Rows of further tables that an attempt brings, which are committed with its trajectories."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pyarrow as pa

from rollart_flow.exchange_rows import exchanges_table
from rollart_flow.types import Trajectory
from rollart_flow.verdict_rows import verdicts_table

KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "verdicts": ("trajectory_id", "source", "kind", "key"),
        "exchanges": ("episode_id", "number"),
    }
)
"""Columns that name a row of each of these tables; the first one names the attempt."""


def rows_beside(trajectories: Iterable[Trajectory]) -> dict[str, pa.Table]:
    """Uncommitted rows of the tables of `KEYS`, by table; a table without rows is left out."""
    trajectories = tuple(trajectories)
    made = {
        "verdicts": verdicts_table(trajectories),
        "exchanges": exchanges_table(trajectories),
    }
    return {table: rows for table, rows in made.items() if rows is not None}

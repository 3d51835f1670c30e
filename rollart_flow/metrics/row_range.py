"""RowRange: rows of a run between two places of its commit order, for the records among them.

Each table is read once for all records and all trackers, at its first use, and only the columns
that figures, samples and spans need: never the tokens.
"""

import threading
from collections.abc import Mapping
from datetime import datetime

import polars as pl

from rollart_flow.metrics.preferences import COLUMNS as PREFERENCES
from rollart_flow.store.snapshot import Tables
from rollart_flow.types import EventKind

_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "trajectories": (
        "seq", "committed_at", "trajectory_id", "episode_id", "group_id", "domain", "split",
        "outcome", "reason", "error", "policy_version_start", "action_mask", "turns", "reward",
        "solved", "created_at", "finished_at", "scored_at", "reset_s", "tool_calls", "tool_errors",
        "branch", "parent", "messages",
    ),
    "exchanges": (
        "seq", "episode_id", "trajectory_id", "number", "kind", "answer_start", "answer_end",
        "trained_tokens", "refusal", "joins", "replays", "mismatches", "hung_up", "arrived_at",
        "generating_at", "first_token_at", "ended_at", "queue_s", "call_s",
    ),
}  # fmt: skip
"""Columns that are read of the tables with large ones."""

_BATCHES = (
    "committed_at", "step", "position", "trajectory_id", "group_id", "advantage", *PREFERENCES,
)  # fmt: skip


class RowRange:
    """The rows beyond one seq, up to another. Any thread may read them."""

    def __init__(self, tables: Tables, after: int, seq: int, steps: tuple[int, int]) -> None:
        """Describe the range; nothing is read.

        Args:
            tables: the tables.
            after: seq before the first row.
            seq: seq of the last row.
            steps: first and last step of the batches.
        """
        self._tables = tables
        self._after, self._seq, self._steps = after, seq, steps
        self._lock = threading.Lock()
        self._read: dict[str, pl.DataFrame] = {}

    def rows(self, table: str) -> pl.DataFrame:
        """Return the rows of a table in commit order.

        Raises:
            FileNotFoundError: files were merged and removed since the tables were opened.
        """
        with self._lock:
            if table not in self._read:
                seq = pl.col("seq")
                frame = self._tables.table(table).filter(seq > self._after, seq <= self._seq)
                if table in _COLUMNS:
                    frame = frame.select(_COLUMNS[table])
                self._read[table] = frame.sort("seq").collect()
            return self._read[table]

    def pauses(self, since: datetime) -> pl.DataFrame:
        """Return the events that suspend and resume engines from a moment on, in commit order.

        They may have been committed before the first row. Columns: kind, at and detail.
        """
        phases = pl.col("kind").is_in([str(EventKind.SUSPEND), str(EventKind.RESUME)])
        frame = self._tables.events.filter(
            phases, pl.col("at") >= since, pl.col("seq") <= self._seq
        )
        return frame.sort("seq").select("kind", "at", "detail").collect()

    def admissions(self, since: datetime) -> dict[str, datetime]:
        """Return when groups were admitted from a moment on, the first time of each, by group.

        The events may have been committed before the first row.
        """
        admitted = pl.col("kind") == str(EventKind.ADMIT)
        frame = self._tables.events.filter(
            admitted, pl.col("at") >= since, pl.col("seq") <= self._seq
        )
        return dict(frame.group_by("subject").agg(pl.col("at").min()).collect().iter_rows())

    def batches(self) -> pl.DataFrame:
        """Return the batches of the steps, which may have been committed before the first row."""
        with self._lock:
            if "batches" not in self._read:
                frame = self._tables.batches.filter(pl.col("step").is_between(*self._steps))
                self._read["batches"] = frame.select(_BATCHES).collect()
            return self._read["batches"]

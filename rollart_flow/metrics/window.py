"""Window: the rows that one record tells about.

A record is a training step or the evaluation of a version. The window of a step has the rows that
were committed since the step before; that of an evaluation has its scores and its attempts.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

import polars as pl

from rollart_flow.metrics.figures import Figure
from rollart_flow.metrics.row_range import RowRange
from rollart_flow.types import Split


class RecordKind(StrEnum):
    """Kinds of things that a record describes."""

    STEP = "step"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class Mark:
    """The place of one record in the commit order of a run."""

    kind: RecordKind
    step: int
    """Training step, or the evaluated version."""
    seq: int
    """Highest seq of the record's own rows; the order of the records."""
    after: int
    """Seq of the step before, after which the window begins."""


class Window:
    """The rows of one record."""

    def __init__(self, read: RowRange, mark: Mark, number: int) -> None:
        """Describe a record.

        Args:
            read: rows that have those of the record among them.
            mark: its place in the commit order.
            number: its number, from 1, in the commit order of the run.
        """
        self.mark = mark
        self.number = number
        self._read = read
        self._lock = threading.RLock()

    def rows(self, table: str) -> pl.DataFrame:
        """Return the rows of a table in commit order, of both splits."""
        seq = pl.col("seq")
        return self._read.rows(table).filter(seq > self.mark.after, seq <= self.mark.seq)

    def pauses(self, since: datetime) -> pl.DataFrame:
        """Return the events that suspend and resume engines from a moment on, in commit order.

        Columns: kind, at and detail.
        """
        return self._read.pauses(since)

    def admissions(self) -> Mapping[str, datetime]:
        """Return when groups were admitted, by group, of those that attempts may have waited for.

        These are all that were admitted since the first attempt of the record began.
        """
        since = self.attempts.select(pl.col("created_at").min()).item()
        return {} if since is None else self._read.admissions(since)

    @cached_property
    def attempts(self) -> pl.DataFrame:
        """Rows of `trajectories` of the record's split: of an evaluation, those of its version."""
        with self._lock:
            rows = self.rows("trajectories")
            if self.mark.kind is RecordKind.STEP:
                return rows.filter(pl.col("split") == Split.TRAIN)
            of_version = pl.col("policy_version_start") == self.mark.step
            return rows.filter(pl.col("split") == Split.EVALUATION, of_version)

    @cached_property
    def batch(self) -> pl.DataFrame:
        """Rows of `batches` of the step, in order of position."""
        with self._lock:
            return self._read.batches().filter(pl.col("step") == self.mark.step).sort("position")

    def group_count(self) -> int:
        """Return the number of groups of the step's batch."""
        return self.batch["group_id"].n_unique()

    def step_row(self) -> Mapping[str, Any]:
        """Return the row of `steps` that the record is about."""
        row: Mapping[str, Any] = self.rows("steps").row(-1, named=True)
        return row


class RunRecord(Window):
    """A window with its figures, which are computed once, whoever asks first."""

    def __init__(
        self,
        read: RowRange,
        mark: Mark,
        number: int,
        compute: Callable[[Window], tuple[Figure, ...]],
    ) -> None:
        super().__init__(read, mark, number)
        self._compute = compute
        self._figures: tuple[Figure, ...] | None = None

    def compute(self) -> tuple[Figure, ...]:
        """Return every figure that the rows give, read at the first call."""
        with self._lock:
            if self._figures is None:
                self._figures = self._compute(self)
            return self._figures

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure that the rows give."""
        return self.compute()

    @property
    def kind(self) -> RecordKind:
        """The kind of thing that the record describes."""
        return self.mark.kind

    @property
    def step(self) -> int:
        """Training step, or the evaluated version."""
        return self.mark.step

    @cached_property
    def at_ms(self) -> int:
        """Time of the record's commit [ms since 1970]: the same at every reading."""
        with self._lock:
            table = "steps" if self.kind is RecordKind.STEP else "evaluations"
            return int(self.rows(table)["committed_at"][-1].timestamp() * 1000)


def conversation(row: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return an attempt as messages with a role and a text, in order."""
    if row["messages"] is not None:
        return [
            {"role": str(each.get("role", "")), "content": _text(each.get("content"))}
            for each in json.loads(row["messages"])
        ]
    said: list[dict[str, str]] = []
    for turn in row["turns"]:
        said.append({"role": "user", "content": turn["observation"]})
        said.append({"role": "assistant", "content": turn["action"]})
    return said


def _text(content: object) -> str:
    """Return the texts of a message's content; parts of another kind are named by it."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    return content if isinstance(content, str) else ""

"""RecordReader: the records of a run in commit order, read from its tables as they grow.

Several threads may read from one reader, each at its own place. They share what is read: the list
of records, which is read again once `renew` was called, and the rows and figures of the records
that were read lately. Rows are read for several records at once.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import polars as pl

from rollart_flow.metrics.compute import compute_figures
from rollart_flow.metrics.row_range import RowRange
from rollart_flow.metrics.window import Mark, RecordKind, RunRecord
from rollart_flow.store.damage import again_if_merged
from rollart_flow.store.run import Run
from rollart_flow.store.snapshot import Snapshot

_AT_ONCE = 8
"""Most records whose rows are read at once."""
_KEPT = 2 * _AT_ONCE
"""Records that are kept for other threads."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of a reader in the records."""

    records: int = 0
    """Number of the last record."""
    seq: int = 0
    """Seq of the last record."""
    step_seq: int = 0
    """Seq of the last record of a step."""

    def after(self, record: RunRecord) -> Self:
        """Return the cursor once a record was taken."""
        mark = record.mark
        of_step = mark.seq if mark.kind is RecordKind.STEP else self.step_seq
        return type(self)(record.number, mark.seq, of_step)

    def as_json(self) -> dict[str, int]:
        """Return the cursor as a JSON value."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Listed:
    """The records of a run that were committed at one moment."""

    snapshot: Snapshot
    marks: Sequence[Mark]
    beyond: int
    """Seq after which they begin."""
    generation: int
    """Number of calls of `renew` before."""


class RecordReader:
    """Reads the records of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._generation = 0
        self._listed: _Listed | None = None
        self._kept: OrderedDict[int, RunRecord] = OrderedDict()

    def renew(self) -> None:
        """Have the next reading of each thread find what was committed until now."""
        self._generation += 1

    def after(self, cursor: Cursor) -> Iterator[RunRecord]:
        """Give the records beyond a cursor, in order, that were committed when `renew` was called.

        Rows are read as they are asked for; a record whose files were merged meanwhile raises, and
        is whole when it is read again.

        Raises:
            StoreError: a table cannot be read.
        """
        with self._lock:
            listed = self._list(cursor)
        marks = [mark for mark in listed.marks if mark.seq > cursor.seq]
        for place, mark in enumerate(marks):
            first = cursor.records + 1 + place
            yield self._record(listed.snapshot, marks[place : place + _AT_ONCE], mark, first)

    def _list(self, cursor: Cursor) -> _Listed:
        generation, listed = self._generation, self._listed
        if listed is None or listed.generation != generation or cursor.seq < listed.beyond:
            snapshot, marks = again_if_merged(self._run.uri, lambda: self._marks(cursor))
            listed = self._listed = _Listed(snapshot, marks, cursor.seq, generation)
        return listed

    def _marks(self, cursor: Cursor) -> tuple[Snapshot, list[Mark]]:
        snapshot = self._run.snapshot()
        later = pl.col("seq") > cursor.seq
        steps = snapshot.steps.filter(later).select("step", "seq", kind=pl.lit(RecordKind.STEP))
        scores = snapshot.evaluations.filter(later).group_by("policy_version")
        evaluations = scores.agg(pl.col("seq").max()).select(
            pl.col("policy_version").alias("step"), "seq", kind=pl.lit(RecordKind.EVALUATION)
        )
        marks, after = [], cursor.step_seq
        for step, seq, kind in pl.concat([steps, evaluations]).sort("seq").collect().iter_rows():
            mark = Mark(RecordKind(kind), step, seq, after)
            after = seq if mark.kind is RecordKind.STEP else after
            marks.append(mark)
        return snapshot, marks

    def _record(
        self, snapshot: Snapshot, ahead: Sequence[Mark], mark: Mark, number: int
    ) -> RunRecord:
        """Return a record; its rows are read together with those of the records ahead."""
        with self._lock:
            record = self._kept.get(mark.seq)
            if record is None or record.number != number:
                rows = _row_range(snapshot, ahead)
                for place, each in enumerate(ahead):
                    made = RunRecord(rows, each, number + place, compute_figures)
                    self._kept[each.seq] = made
                record = self._kept[mark.seq]
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return record

    def forget(self) -> None:
        """Read every record anew, since files of the kept ones were merged and removed."""
        with self._lock:
            self._kept.clear()
            self._listed = None


def _row_range(snapshot: Snapshot, marks: Sequence[Mark]) -> RowRange:
    """Return the rows of some records."""
    steps = [mark.step for mark in marks if mark.kind is RecordKind.STEP]
    bounds = (min(steps), max(steps)) if steps else (0, -1)
    return RowRange(snapshot, min(m.after for m in marks), max(m.seq for m in marks), bounds)

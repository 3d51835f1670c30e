"""RecordReader: the records of a run in commit order, read from its tables as they grow.

Several threads may read from one reader, each at its own place. Records that were read lately are
kept, so that threads which read the same one share its rows and figures.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Self

import polars as pl

from rollart_flow.metrics.compute import compute_figures
from rollart_flow.metrics.window import Mark, RecordKind, RunRecord
from rollart_flow.store.run import Run, again_if_merged
from rollart_flow.store.snapshot import Snapshot

_KEPT = 8
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


class RecordReader:
    """Reads the records of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, RunRecord] = OrderedDict()

    def after(self, cursor: Cursor) -> Iterator[RunRecord]:
        """Give the records beyond a cursor that are committed now, in order.

        Rows are read as they are asked for; a record whose files were merged meanwhile raises, and
        is whole when it is read again.

        Raises:
            StoreError: a table cannot be read.
        """
        snapshot, marks = again_if_merged(self._run.uri, lambda: self._marks(cursor))
        for number, mark in enumerate(marks, cursor.records + 1):
            yield self._record(snapshot, mark, number)

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

    def _record(self, snapshot: Snapshot, mark: Mark, number: int) -> RunRecord:
        with self._lock:
            record = self._kept.get(mark.seq)
            if record is None or record.number != number:
                record = self._kept[mark.seq] = RunRecord(snapshot, mark, number, compute_figures)
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return record

    def forget(self) -> None:
        """Read every record anew, since files of the kept ones were merged and removed."""
        with self._lock:
            self._kept.clear()

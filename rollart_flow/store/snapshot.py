"""The contents of all tables of a run at one moment of its commit order.

A cut is a seq: the snapshot shows every row up to it and none beyond. Snapshots depend on the rows'
own seq, not on Delta versions, so that compaction and vacuum cannot change them.

`watch` takes them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from rollart_flow.errors import StoreError
from rollart_flow.schema import TABLES, stored_schema
from rollart_flow.store import files
from rollart_flow.store.table import missing_columns


class Tables(ABC):
    """The tables of a run."""

    @abstractmethod
    def table(self, name: str) -> pl.LazyFrame:
        """Rows of one table, unsorted; columns that an older run lacks are null.

        A table that an older run lacks is empty.
        """

    @property
    def trajectories(self) -> pl.LazyFrame:
        """One row per attempt, whatever its outcome."""
        return self.table("trajectories")

    @property
    def batches(self) -> pl.LazyFrame:
        """One row per trajectory per training step: advantage, weight, staleness, lag."""
        return self.table("batches")

    @property
    def steps(self) -> pl.LazyFrame:
        """One row per training step: loss, gradient norm, seconds of each phase."""
        return self.table("steps")

    @property
    def weights(self) -> pl.LazyFrame:
        """One row per published policy version."""
        return self.table("weights")

    @property
    def events(self) -> pl.LazyFrame:
        """Events of the control plane, with subject and reason."""
        return self.table("events")

    @property
    def bindings(self) -> pl.LazyFrame:
        """The requested and the granted resource class of each worker."""
        return self.table("bindings")

    @property
    def evaluations(self) -> pl.LazyFrame:
        """Held-out scores by step and domain."""
        return self.table("evaluations")

    @property
    def sandboxes(self) -> pl.LazyFrame:
        """One row per box that environments or verifiers used, once it has ended."""
        return self.table("sandboxes")

    @property
    def verdicts(self) -> pl.LazyFrame:
        """One row per test, and per part of the reward, of each trajectory that was judged."""
        return self.table("verdicts")

    @property
    def admissions(self) -> pl.LazyFrame:
        """The checks by which tasks were admitted to the run."""
        return self.table("admissions")

    @property
    def exchanges(self) -> pl.LazyFrame:
        """One row per call of a captured agent, with what it asked for, and what it got."""
        return self.table("exchanges")


class Snapshot(Tables):
    """The tables up to one cut.

    The rows stay readable for `maintenance.RETENTION`, or until the run ends. Later, their files
    may have been merged and removed, and collecting a frame raises FileNotFoundError; then take a
    new snapshot.
    """

    def __init__(self, run: str, handles: Mapping[str, DeltaTable | None], seq: int) -> None:
        """Use `Run.snapshot`. `handles` hold all rows up to `seq` and are never updated.

        A table without a handle is empty.
        """
        self.run = run
        self.seq = seq
        self._handles = handles

    def table(self, name: str) -> pl.LazyFrame:
        """Rows of one table up to the cut, unsorted; columns that an older run lacks are null.

        A table that an older run lacks is empty.
        """
        handle = self._handles[name]
        if handle is None:
            return pl.DataFrame(stored_schema(name).empty_table()).lazy()
        later = pa.schema(missing_columns(name, handle)).empty_table()
        nulls = [
            pl.lit(None, kind).alias(column) for column, kind in pl.DataFrame(later).schema.items()
        ]
        scanned = pl.scan_delta(handle, storage_options=files.reading_options(self.run))
        return scanned.filter(pl.col("seq") <= self.seq).with_columns(nulls)

    def version(self, table: str) -> int:
        """Version of a Delta table that the snapshot reads; 0 if an older run lacks the table."""
        handle = self._handles[table]
        return 0 if handle is None else int(handle.version())

    def until(self, seq: int) -> "Snapshot":
        """Return the same tables up to an earlier cut; this snapshot if the cut is later."""
        return Snapshot(self.run, self._handles, min(seq, self.seq))

    def frames(self) -> dict[str, pl.LazyFrame]:
        """All tables by name."""
        return {table: self.table(table) for table in TABLES}

    def seq_of_step(self, step: int) -> int:
        """Seq of the row of `steps` of one step.

        Raises:
            StoreError: the step is not stored; the message names the last stored step.
        """
        found = self.steps.filter(pl.col("step") == step).select("seq").collect()
        if found.is_empty():
            last = self.steps.select(pl.col("step").max()).collect().item()
            known = "it has no steps yet" if last is None else f"its last is {last}"
            raise StoreError(f"no step {step} in the run at {self.run}; {known}")
        return int(found.item(0, 0))

    def seq_at(self, time: datetime) -> int:
        """Highest seq that was committed up to a moment; 0 if none was.

        Raises:
            StoreError: `time` has no time zone.
        """
        if time.tzinfo is None:
            raise StoreError(f"time {time.isoformat()} has no time zone; add one, such as +00:00")
        past = [
            frame.filter(pl.col("committed_at") <= time).select(pl.col("seq").max())
            for frame in self.frames().values()
        ]
        return max(frame.item() or 0 for frame in pl.collect_all(past))

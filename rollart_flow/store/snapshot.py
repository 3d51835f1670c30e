"""The contents of all tables of a run at one moment of its commit order.

A cut is a seq: the snapshot shows every row up to it and none beyond. Snapshots depend on the rows'
own seq, not on Delta versions, so that compaction and vacuum cannot change them.

`Watch` takes snapshots while the tables grow. Its handles stay open between snapshots, so that
another snapshot is cheap if nothing changed; all readers of a process share those of a run
(`watch`). Two kinds of handles are kept apart: those that are updated, and those that a snapshot
holds and that are never updated again.
"""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from rollart_flow.errors import StoreError
from rollart_flow.schema import TABLES, stored_schema
from rollart_flow.store import files
from rollart_flow.store.layout import table_uri
from rollart_flow.store.table import COMPLETE, find_table, mark, missing_columns
from rollart_flow.store.table_log import log_entry

_REOPEN_AFTER = 50
"""Versions after which a handle is reopened, because it slows down as its history grows."""
_SHARED_RUNS = 16
"""Runs whose handles stay open for further readers."""


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


_Identity = tuple[int, int, int]
"""Inode, time of the last change [ns] and bytes of a file."""


class _Watched:
    """One table, whose handle is updated by every `look`, unless a snapshot holds it."""

    def __init__(self, run: str, table: str) -> None:
        self._run = run
        self._table = table
        self._shown: DeltaTable | None = None
        self._shown_with: tuple[dict[str, str] | None, _Identity | None] = None, None
        self._open()

    def _open(self) -> None:
        self._options = files.storage_options(self._run)
        self._handle = find_table(self._run, self._table)
        self._opened = 0 if self._handle is None else self._handle.version()
        self._complete: tuple[int, int] | None = None
        self._newest = self._identity()

    def look(self) -> None:
        """Update the handle to the newest version, with the current credentials.

        One that a snapshot holds is replaced.
        """
        if self._newest is not None and self._identity() == self._newest:
            return
        held = self._handle is self._shown
        if held or self._handle is None or files.storage_options(self._run) != self._options:
            self._open()
            return
        if self._newest is not None and self._entry(self._handle) != self._newest:
            self._open()  # an older entry, which maintenance removed, or of another table
            return
        try:
            self._handle.update_incremental()
        except (DeltaError, OSError):  # entries since the held version may have been removed
            self._open()
        if self._handle is not None and self._handle.version() - self._opened >= _REOPEN_AFTER:
            self._open()
        self._newest = self._identity()

    def _identity(self) -> _Identity | None:
        """Identity of the file of the held version's log entry, which others would follow.

        It is None if a later entry is there, if the entry was removed, as the oldest ones are, or
        if the run lies in an object store.
        """
        if self._handle is None or files.is_remote(self._run):
            return None
        uri = table_uri(self._run, self._table)
        if os.path.exists(files.join(uri, log_entry(self._handle.version() + 1))):
            return None
        return self._entry(self._handle)

    def _entry(self, handle: DeltaTable) -> _Identity | None:
        uri = table_uri(self._run, self._table)
        try:
            found = os.stat(files.join(uri, log_entry(handle.version())))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def complete(self) -> int:
        """The COMPLETE mark of the version that the handle holds; 0 without a table."""
        if self._handle is None:
            return 0
        version = self._handle.version()
        if self._complete is None or self._complete[0] != version:
            self._complete = version, mark(self._handle, COMPLETE)
        return self._complete[1]

    def show(self) -> DeltaTable | None:
        """Return a handle of the version last looked at, which is never updated any more.

        It is None if the run has no such table.
        """
        if self._handle is None:
            return None
        older = self._shown is None or self._shown.version() != self._handle.version()
        if older or self._shown_with != (self._options, self._newest):
            self._shown, self._shown_with = self._handle, (self._options, self._newest)
        return self._shown


class Watch:
    """All tables of one run. Any thread may take snapshots."""

    def __init__(self, run: str) -> None:
        """Watch the run at an address; no table is read yet."""
        self.run = run
        self._lock = threading.Lock()
        self._tables: dict[str, _Watched] = {}

    def snapshot(self, cut: int | None = None) -> Snapshot:
        """All tables as of the newest complete group of commits, or of an earlier seq.

        The first update of the handles finds the newest complete group. All commits before it had
        finished by then, so a second update of every handle sees all rows up to it.

        Raises:
            StoreError: a table cannot be read.
            SchemaError: a table does not have the declared schema.
        """
        with self._lock:
            for table in TABLES:
                if table in self._tables:
                    self._tables[table].look()
                else:
                    self._tables[table] = _Watched(self.run, table)
            watched = self._tables.values()
            newest = max(table.complete() for table in watched)
            for table_watched in watched:
                table_watched.look()
            handles = {table: self._tables[table].show() for table in TABLES}
        return Snapshot(self.run, handles, newest if cut is None else min(cut, newest))


def watch(run: str) -> Watch:
    """Return the watch of a run, which all readers of this process share.

    To open all tables anew takes some 70 ms of CPU, to see that none has changed half of one. Runs
    in object stores, where that cannot be seen, and those of relative paths are not shared.
    """
    return _shared(run) if os.path.isabs(run) else Watch(run)


_shared = lru_cache(maxsize=_SHARED_RUNS)(Watch)

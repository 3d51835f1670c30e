"""The one writer of a run: commits rows to its tables, durably, in order, and once.

Invariants:
- every row of every table has a `seq`, strictly increasing over all tables and over restarts;
- a group of commits is visible completely or not at all; the next writer removes what a crash left
  incomplete before it commits anything;
- of two writers of one run, the one that opened it last continues; the other gets FencedError;
- a writer of an earlier driver than the run has (`lease`) cannot open it, and so fences nobody;
- a commit with a caller's number takes place once, however often any writer retries it.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Self

import pyarrow as pa

from rollart_flow.errors import FencedError, RollartError, StoreError
from rollart_flow.schema import SCHEMA_VERSION, TABLES
from rollart_flow.store import files
from rollart_flow.store.encoding import (
    Rows,
    Span,
    checked_rows,
    in_closing_order,
    number,
    write_rows,
)
from rollart_flow.store.info import RunInfo, RunStatus, info_uri, read_info, write_info
from rollart_flow.store.lease_file import Tenure
from rollart_flow.store.maintenance import RETENTION, Maintained, Merge, RunMaintenance, merged
from rollart_flow.store.marks import CALLER, CLOCK, COMPLETE, WRITER
from rollart_flow.store.owner import Owner
from rollart_flow.store.table_log import TableLog

_MAINTAIN_AFTER = 50


def _now_ns() -> int:
    return time.time_ns()


class RunWriter:
    """Commits rows to the tables of one run. Every method may be called from any thread."""

    def __init__(
        self,
        uri: str,
        info: RunInfo,
        term: int | None = None,
        merge: Merge = merged,
        clock: Callable[[], int] = _now_ns,
    ) -> None:
        """Use `create` or `open`."""
        self.uri = uri
        self.info = info
        self._clock = clock
        self._lock = threading.Lock()
        self._maintaining = threading.Lock()
        self._closed = False
        self._commits = 0
        self._seq = self._complete = self._clock_us = 0
        self._in_doubt = False
        self._logs = {table: TableLog(uri, table) for table in TABLES}
        for log in self._logs.values():
            log.take_over(term)
        self._settle()
        self._maintenance = RunMaintenance(self._logs, self._lock, merge)

    @classmethod
    def create(cls, uri: str, info: RunInfo, *, clock: Callable[[], int] = _now_ns) -> Self:
        """Start a new run at an address.

        Args:
            uri: the address.
            info: information about the run.
            clock: time of a commit [ns since the epoch].

        Raises:
            RunExistsError: there is already a run at the address.
            StoreError: the folder cannot be written.
        """
        uri = files.normalize(uri)
        files.check_writable(uri)
        write_info(uri, info, new=True)
        try:
            return cls(uri, info, clock=clock)
        except RollartError:
            with suppress(StoreError):
                files.remove(info_uri(uri))
            raise

    @classmethod
    def open(
        cls,
        uri: str,
        tenure: Tenure | None = None,
        *,
        merge: Merge = merged,
        ended: bool = False,
    ) -> Self:
        """Take a run over: an older writer, even one that still runs, can no longer commit.

        Args:
            uri: address of the run.
            tenure: the driver of the run; by default this process, in the term of the last driver.
            merge: writes the rows of adjacent files as one, as another process may.
            ended: whether the run stays as it ended, and rows are only added to it.

        Raises:
            FencedError: a process of a later term drives the run.
            RunNotFoundError: there is no run.
            StoreError: the run cannot be read or written, or has a newer schema version.
        """
        uri = files.normalize(uri)
        files.check_writable(uri)
        read = read_info(uri)
        info = replace(
            read,
            status=read.status if ended else RunStatus.RUNNING,
            error=read.error if ended else None,
            owner=Owner.this_process() if tenure is None else tenure.owner,
            term=read.term if tenure is None else tenure.term,
            schema_version=SCHEMA_VERSION,
        )
        writer = cls(uri, info, None if tenure is None else tenure.term, merge)
        write_info(uri, info)
        return writer

    @property
    def last_seq(self) -> int:
        """The highest assigned seq; later rows get higher ones."""
        return self._seq

    @property
    def maintenance_due(self) -> bool:
        """Whether enough was committed since the last `maintain` for another one to pay off."""
        return self._commits >= _MAINTAIN_AFTER

    def commit(self, table: str, rows: pa.Table, *, transaction: int | None = None) -> Span:
        """Commit uncommitted rows to one table; see `commit_many`."""
        return self.commit_many({table: rows}, transaction=transaction)[table]

    def commit_many(
        self, rows: Mapping[str, Rows], *, transaction: int | None = None
    ) -> dict[str, Span]:
        """Commit uncommitted rows to several tables: all of them become visible, or none.

        Args:
            rows: rows of `schema.row_schema` by table, here or in other processes, which have
                checked them; `steps` gets the highest seqs.
            transaction: the caller's number of this commit, higher than all before. If a commit
                of that number exists, nothing is written and its seqs are returned.

        Returns:
            (first, last) seq by table, once the rows are in the tables.

        Raises:
            SchemaError: rows do not match their table; nothing was written.
            RowsLostError: another process died with its rows; nothing was committed.
            FencedError: another writer has taken the run over; this one must stop.
            StoreError: storage failed; without a `transaction`, check the tables before a retry.
        """
        checked = in_closing_order(checked_rows(rows))
        filled = {table: added for table, added in checked.items() if added.num_rows}
        with self._lock:
            self._ensure_usable()
            if transaction is not None and filled:
                counts = {table: added.num_rows for table, added in checked.items()}
                known = self._logs[next(reversed(filled))].recorded(transaction, counts)
                if known is not None:
                    return known
            spans = number(checked, after=self._seq)
            if filled:
                self._write(filled, spans, transaction)
            return spans

    def _write(
        self, rows: Mapping[str, Rows], spans: dict[str, Span], transaction: int | None
    ) -> None:
        """Write all data files, then commit them table by table; the last closes the group."""
        self._clock_us = max(self._clock_us, self._clock() // 1000)
        added = write_rows(self.uri, rows, spans, self._clock_us)
        closing = next(reversed(added))
        last = spans[closing][1]
        self._in_doubt = True
        for table, new in added.items():
            marks, note = {WRITER: spans[table][1], CLOCK: self._clock_us}, {}
            if table == closing:
                marks[COMPLETE] = last
            if table == closing and transaction is not None:
                marks[CALLER] = transaction
                note = {"transaction": transaction, "seqs": spans}
            self._logs[table].append(new, marks, note)
        self._seq = self._complete = last
        self._commits += 1
        self._in_doubt = False

    def _ensure_usable(self) -> None:
        if self._closed:
            raise StoreError(f"the writer of the run at {self.uri} is closed")
        if self._in_doubt:
            for log in self._logs.values():
                log.load()
            self._settle()

    def _settle(self) -> None:
        """Find the last complete group, remove rows beyond it, and continue after it."""
        logs = self._logs.values()
        for log in logs:
            log.verify()
        self._complete = max(log.mark(COMPLETE) for log in logs)
        for log in logs:
            log.roll_back(self._complete)
        self._seq = max(log.mark(WRITER) for log in logs)
        self._clock_us = max(log.mark(CLOCK) for log in logs)
        self._in_doubt = False

    def maintain(self, *, retention: timedelta = RETENTION) -> dict[str, Maintained]:
        """Merge files, checkpoint logs and remove what is not used; run it in a joined thread.

        Commits continue meanwhile; a second call waits for the first.

        Args:
            retention: how long replaced files are kept for readers that use them.

        Raises:
            StoreError: storage failed; the rows of the tables are unchanged.
        """
        return self._maintain(retention, final=False)

    def _maintain(self, retention: timedelta, *, final: bool) -> dict[str, Maintained]:
        with self._maintaining:
            self._commits = 0
            return self._maintenance.run(self._complete, retention, final=final)

    def close(
        self,
        status: RunStatus = RunStatus.FINISHED,
        error: str | None = None,
        *,
        maintain: bool = True,
    ) -> None:
        """Record how the run ended, and refuse further commits. A fenced writer records nothing.

        What only readers of a running run need is removed at once: a reader that has held a
        snapshot since before the end may have to take another one.

        Args:
            status: how the run ended.
            error: reason of a failure, in one line.
            maintain: whether to merge files and to remove what is not used.

        Raises:
            StoreError: the status cannot be written, or, once it is, the last maintenance failed.
        """
        with suppress(FencedError):
            with self._maintaining, self._lock:
                if self._closed:
                    return
                self._closed = True
                for log in self._logs.values():
                    log.refresh()
                    log.verify()
                self.info = replace(self.info, status=status, error=error)
                write_info(self.uri, self.info)
            if maintain:
                self._maintain(timedelta(0), final=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.close(RunStatus.FAILED, f"{type(error).__name__}: {files.one_line(error)}")

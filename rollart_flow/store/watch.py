"""Snapshots of the tables of a run for one reader, taken while the tables grow.

Handles stay open between snapshots, so that another snapshot is cheap if nothing changed. Two kinds
of handles are kept apart: those that are updated, and those that a snapshot holds and that are
never updated again.
"""

import threading

from deltalake import DeltaTable

from rollart_flow.schema import TABLES
from rollart_flow.store import files
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.store.table import COMPLETE, delta_errors, mark, open_table

_REOPEN_AFTER = 50
"""Versions after which a handle is reopened, because it slows down as its history grows."""


class _Watched:
    """One table, whose handle is updated by every `look`."""

    def __init__(self, run: str, table: str) -> None:
        self._run = run
        self._table = table
        self._open()
        self._shown, self._shown_with = self._handle, self._options
        self._open()

    def _open(self) -> None:
        self._options = files.storage_options(self._run)
        self._handle: DeltaTable = open_table(self._run, self._table)
        self._opened = self._handle.version()
        self._complete: tuple[int, int] | None = None

    def look(self) -> None:
        """Update the handle to the newest version, with the current credentials."""
        if files.storage_options(self._run) != self._options:
            self._open()
            return
        with delta_errors(f"{self._table}: cannot read the Delta log"):
            self._handle.update_incremental()
        if self._handle.version() - self._opened >= _REOPEN_AFTER:
            self._open()

    def complete(self) -> int:
        """The COMPLETE mark of the version that the handle holds."""
        version = self._handle.version()
        if self._complete is None or self._complete[0] != version:
            self._complete = version, mark(self._handle, COMPLETE)
        return self._complete[1]

    def show(self) -> DeltaTable:
        """Return a handle, at least as new as the held version, that is never updated."""
        if self._shown.version() != self._handle.version() or self._shown_with != self._options:
            self._shown, self._shown_with = open_table(self._run, self._table), self._options
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

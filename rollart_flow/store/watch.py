"""The open tables of a run, of which snapshots are taken while the tables grow.

Handles stay open between snapshots, so that another snapshot is cheap if nothing changed; all
readers of a process share those of a run (`watch`). Two kinds of handles are kept apart: those that
are updated, and those that a snapshot holds and that are never updated again.
"""

import os
import threading
from functools import lru_cache

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from rollart_flow.schema import TABLES
from rollart_flow.store import files
from rollart_flow.store.layout import log_entry, table_uri
from rollart_flow.store.marks import COMPLETE, mark
from rollart_flow.store.snapshot import Snapshot
from rollart_flow.store.table import find_table

_REOPEN_AFTER = 50
"""Versions after which a handle is reopened, because it slows down as its history grows."""
_SHARED_RUNS = 16
"""Runs whose handles stay open for further readers."""

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

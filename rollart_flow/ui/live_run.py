"""LiveRun: one run that several pages read while it grows.

The invariant: the tables are looked at once in `FRESH_S` seconds at most, in `FRESH_AWAY_S` if they
are in an object store, however many pages ask.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import polars as pl

from rollart_flow.store import Run, Snapshot, files, open_run
from rollart_flow.store.away import repeated_query
from rollart_flow.store.damage import reading

T = TypeVar("T")
FRESH_S, FRESH_AWAY_S = 1.0, 5.0
"""Ages up to which a snapshot is given again [s]; one from an object store costs 22 requests."""


class LiveRun:
    """A run and its newest snapshot. Any thread may read it."""

    def __init__(self, uri: str) -> None:
        """Open the run at an address.

        Raises:
            RunNotFoundError: there is none.
            StoreError: it is damaged, or has a newer schema version.
        """
        self.run: Run = open_run(uri)
        self._fresh_s = FRESH_AWAY_S if files.is_remote(self.run.uri) else FRESH_S
        self._lock = threading.Lock()
        self._newest: Snapshot | None = None
        self._taken = 0.0

    def newest(self) -> Snapshot:
        """Return all tables, as of a second ago at most.

        Raises:
            StoreError: a table cannot be read.
        """
        with self._lock:
            if self._newest is None or time.monotonic() - self._taken > self._fresh_s:
                self._newest = repeated_query(f"read {self.run.uri}", self.run.snapshot)
                self._taken = time.monotonic()
            return self._newest

    def read(self, read: Callable[[Snapshot], T], at: int | None = None) -> T:
        """Return the result of a function of the tables, now or up to an earlier seq.

        Files of a snapshot may be merged and removed while it is read; it is taken anew then.

        Raises:
            StoreError: a data file is missing or torn.
        """
        try:
            return self._read(read, at)
        except (FileNotFoundError, pl.exceptions.PanicException):
            with self._lock:
                self._newest = None
            with reading(self.run.uri):
                return self._read(read, at)

    def _read(self, read: Callable[[Snapshot], T], at: int | None) -> T:
        newest = self.newest()
        snapshot = newest if at is None else newest.until(at)
        return repeated_query(f"read {self.run.uri}", lambda: read(snapshot))

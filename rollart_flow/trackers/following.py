"""Followers: threads that write the records of a run to its trackers.

Each tracker has a thread of its own and reads at its own place, so that one which hangs or fails
delays no other. Threads that take the same record share its rows and figures.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from rollart_flow.errors import RollartError
from rollart_flow.metrics.reading import Cursor, RecordReader
from rollart_flow.metrics.window import RunRecord
from rollart_flow.store import Run
from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink, error_without_keys
from rollart_flow.trackers.cursors import read_cursor, tracked_run, write_cursor

_READS = 3
"""Attempts at a record whose files are merged while it is read."""
_SAVED_EVERY = 32
"""Records after which the cursor is recorded, at the latest; it also is when all are written."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """The state in which one tracker ended."""

    tracker: str
    records: int
    """Records that it has."""
    error: str | None = None
    """Why it ended early, in one line without keys; None if it has every record."""


class Follower:
    """Thread that writes the records of a run to one tracker."""

    def __init__(
        self,
        tracker: Tracker,
        run: TrackedRun,
        reader: RecordReader,
        told: Callable[[Tracked], None],
    ) -> None:
        """Start the thread, which writes what there is and waits to be woken.

        `told` is called once in the thread, when the tracker has failed or is closed.
        """
        self.tracker = tracker
        self.records = 0
        self.opened = False
        """Whether the tracker was opened, or cannot be."""
        self._run, self._reader, self._told = run, reader, told
        self._woken = threading.Event()
        self._ending = False
        self._cursor = self._saved = Cursor()
        self._writing_since: float | None = None
        self._thread = threading.Thread(target=self._follow, name=tracker.name, daemon=True)
        self._thread.start()

    def wake(self, *, ending: bool = False) -> None:
        """Write what was committed since; with `ending`, then close the tracker."""
        self._ending = self._ending or ending
        self._woken.set()

    def join(self, limit_s: float | None) -> bool:
        """Wait until the thread has ended; return whether it has."""
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def stuck_s(self) -> float:
        """Return the seconds for which it has been opening, or writing one record."""
        since = self._writing_since
        return 0.0 if since is None else time.monotonic() - since

    def _follow(self) -> None:
        error: str | None = None
        try:
            self._writing_since = time.monotonic()
            sink = self.tracker.opened(self._run)
            self._writing_since, self.opened = None, True
            try:
                self._write_all(sink)
            finally:
                self._writing_since = time.monotonic()
                sink.close()
                self._writing_since = None
        except RollartError as raised:
            error = str(raised)
        except BaseException as raised:  # noqa: BLE001  a library of others ends here
            error = error_without_keys(raised)
        self._writing_since, self.opened = None, True
        self._told(Tracked(self.tracker.name, self.records, error))

    def _write_all(self, sink: TrackerSink) -> None:
        known = sink.written
        cursor = read_cursor(self._run.uri, self.tracker.name) if known is None else Cursor()
        self.records = cursor.records if known is None else known
        self._cursor = self._saved = cursor
        while True:
            ending = self._ending
            cursor = self._write(sink, cursor)
            if ending:
                return
            self._woken.wait()
            self._woken.clear()

    def _write(self, sink: TrackerSink, cursor: Cursor) -> Cursor:
        """Write every record beyond a cursor; return the new one."""
        failed = 0
        while True:
            try:
                for record in self._reader.after(cursor):
                    if record.number > self.records:
                        self._write_one(sink, record)
                        self.records = record.number
                    cursor, failed = cursor.after(record), 0
                    self._cursor = cursor
                    if record.number % _SAVED_EVERY == 0:
                        self._save()
                return cursor
            except (FileNotFoundError, pl.exceptions.PanicException):
                self._reader.forget()  # the files were merged: a new snapshot has the new ones
                failed += 1
                if failed == _READS:
                    raise
            finally:
                self._save()

    def _save(self) -> None:
        """Record how far the tracker has come, unless that is recorded."""
        if self._saved != self._cursor:
            write_cursor(self._run.uri, self.tracker.name, self._cursor)
            self._saved = self._cursor

    def _write_one(self, sink: TrackerSink, record: RunRecord) -> None:
        record.compute()  # read whole before the tracker has any of it
        self._writing_since = time.monotonic()
        sink.write(record)
        self._writing_since = None


class Followers:
    """The followers of one run, which share what they read of it."""

    def __init__(
        self, run: Run, trackers: Sequence[Tracker], told: Callable[[Tracked], None]
    ) -> None:
        """Start to write the records of a run to trackers, each from where it was left."""
        self._reader, described = RecordReader(run), tracked_run(run)
        self._each = [Follower(tracker, described, self._reader, told) for tracker in trackers]

    def __iter__(self) -> Iterator[Follower]:
        return iter(self._each)

    def wake(self, *, ending: bool = False) -> None:
        """Have all write what was committed until now; with `ending`, then close the trackers."""
        self._reader.renew()
        for follower in self._each:
            follower.wake(ending=ending)


def catch_up(run: Run, trackers: Sequence[Tracker]) -> list[Tracked]:
    """Write what each tracker lacks of a run, and return what became of them."""
    done: list[Tracked] = []
    followers = Followers(run, trackers, done.append)
    followers.wake(ending=True)
    for follower in followers:
        follower.join(None)
    order = [tracker.name for tracker in trackers]
    return sorted(done, key=lambda tracked: order.index(tracked.tracker))

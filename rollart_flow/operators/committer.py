"""Group commit: rows of all tables are queued and reach Delta in micro-batches.

There is one writer and one order: rows queued earlier get the lower `seq`. A call returns when its
rows are durable. Commits run in a worker thread, so that the event loop stays responsive;
maintenance (compaction, vacuum, log checkpoints) runs concurrently in a second thread. `close`
joins both threads.

A commit costs several milliseconds of CPU and some syncs, however few rows it has. To keep a
trickle of rows from taking a core away from generation and training, the committer gathers rows
before each commit that is not full: until the oldest of them has waited for `interval_s`, and for a
time proportional to the duration of the last commit since its end.
Full commits follow one another at once, unless their rows are many bytes: then they rest as well
while more rows come, so that a run that ends thousands of long trajectories a second has few, large
commits, whose files nobody has to merge. Events do not trigger commits of their own at once.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from rollart_flow.attempt_rows import KEYS
from rollart_flow.control.loop.waits import within
from rollart_flow.errors import FencedError, RollartError, RowsLostError, StoreError
from rollart_flow.rows import events_table
from rollart_flow.store import RunWriter
from rollart_flow.store.away import passed_outages
from rollart_flow.store.encoding import Rows
from rollart_flow.text import one_line
from rollart_flow.types import Event, EventKind

_log = logging.getLogger(__name__)

_REST = 0.5
"""Time to gather rows, as a multiple of the last commit's duration."""
_BUSY_REST = 3.0
"""Time to gather rows before full commits of many bytes, from the end of the last commit on, as a
multiple of its duration."""
_PAUSE = 0.25
"""Time without new rows that ends a full commit's rest, as a multiple of the last commit's
duration: all producers may be waiting for it."""
_MANY_BYTES, _ENOUGH_BYTES = 1 << 20, 32 << 20
"""Sizes of rows in memory from which a full commit rests, and from which it does not any more: its
file is then larger than those that maintenance merges."""
_LONGEST = 5.0
"""Upper bound of the time to gather rows, as a multiple of `interval_s`."""
_EVENTS_S = 1.0
"""Longest time that events wait for rows to share a commit with [s]."""


@dataclass(frozen=True, slots=True)
class _Queued:
    tables: Mapping[str, pa.Table]
    done: asyncio.Future[None]
    at: float
    """Moment at which it was queued, by the clock of the event loop [s]."""
    nbytes: int = 0
    """Size of the rows in memory [bytes]."""

    @property
    def rows(self) -> int:
        """Number of rows that wait for others, without those that come with an attempt."""
        return sum(rows.num_rows for table, rows in self.tables.items() if table not in KEYS)


Locate = Callable[[pa.Table], Rows]


def _here(rows: pa.Table) -> Rows:
    return rows


class Committer:
    """Commits queued rows after `interval_s`, or at once when `max_rows` rows are waiting.

    Args:
        writer: the run's only writer; its methods run in this committer's threads.
        max_rows: number of waiting rows that triggers a commit at once.
        interval_s: time that a row waits for other rows, the commit before included; up to
            `_LONGEST` times as long if commits are slow.
        locate: returns rows that may be in other processes, for rows that were queued.
    """

    def __init__(
        self,
        writer: RunWriter,
        *,
        max_rows: int,
        interval_s: float,
        locate: Locate = _here,
    ) -> None:
        self._writer = writer
        self._max_rows = max_rows
        self._interval_s = interval_s
        self._locate = locate
        self._queue: list[_Queued] = []
        self._events: list[tuple[datetime, Event]] = []
        self._work = asyncio.Event()
        self._rows = asyncio.Event()
        self._full = asyncio.Event()
        self._urgent = asyncio.Event()
        self._closing = False
        self._commit_s = self._ended = 0.0
        self._failure: RollartError | None = None
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="commit")
        self._maintenance: asyncio.Task[None] | None = None
        self._unmaintained: set[str] = set()
        self._task = asyncio.create_task(self._run())

    def report(self, event: Event, at: datetime | None = None) -> None:
        """Queue an event, to be committed with the next rows. Does not wait.

        Args:
            event: event to record.
            at: UTC time of the event; None means now.
        """
        self._events.append((at or datetime.now(UTC), event))
        self._work.set()

    async def commit(self, tables: Mapping[str, pa.Table], *, at_once: bool = False) -> None:
        """Queue rows of one or more tables and wait until they are durable, all or none.

        Args:
            tables: rows by table.
            at_once: do not wait for more rows, since a caller is blocked until this commit.

        Raises:
            StoreError: the rows could not be written, or the committer has failed or is closing.
            RowsLostError: another process died with the rows; nothing was committed.
            SchemaError: rows do not match their table; later commits fail too.
        """
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise StoreError("the run is closing; nothing more is committed to it")
        nbytes = sum(rows.nbytes for rows in tables.values())
        loop = asyncio.get_running_loop()
        queued = _Queued(tables, loop.create_future(), loop.time(), nbytes)
        self._queue.append(queued)
        self._work.set()
        self._rows.set()
        if at_once or sum(item.rows for item in self._queue) >= self._max_rows:
            self._full.set()
        if at_once or (self._full.is_set() and self._nbytes() >= _ENOUGH_BYTES):
            self._urgent.set()
        await queued.done

    def _nbytes(self) -> int:
        return sum(item.nbytes for item in self._queue)

    async def reported(self) -> None:
        """Return once all events that were reported before are durable.

        Raises:
            StoreError: see `commit`.
        """
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        queued = _Queued({}, loop.create_future(), loop.time())
        self._queue.append(queued)
        self._work.set()
        await queued.done

    async def close(self) -> None:
        """Commit all queued rows and events, then join the threads."""
        self._closing = True
        self._work.set()
        self._rows.set()
        self._full.set()
        self._urgent.set()
        await self._task
        if self._maintenance is not None:
            await self._maintenance
            await self._write([])
        self._threads.shutdown()

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            await self._gather()
            for event in (self._work, self._rows, self._full, self._urgent):
                event.clear()
            queue, self._queue = self._queue, []
            for part in _alike(queue):
                await self._write(part)
            if self._closing:
                return

    async def _gather(self) -> None:
        """Wait until enough rows or enough time have accumulated for a commit."""
        await within(_EVENTS_S, self._rows)
        now = asyncio.get_running_loop().time
        longest_s = _LONGEST * self._interval_s
        oldest = self._queue[0].at if self._queue else now()
        rested = self._ended + min(_REST * self._commit_s, longest_s)
        await within(max(oldest + self._interval_s, rested) - now(), self._full)
        if self._full.is_set() and self._nbytes() >= _MANY_BYTES:
            rested = self._ended + min(_BUSY_REST * self._commit_s, longest_s)
            known = 0
            while known < len(self._queue) and not self._urgent.is_set() and now() < rested:
                known = len(self._queue)
                await within(min(rested - now(), _PAUSE * self._commit_s), self._urgent)

    async def _write(self, queue: list[_Queued]) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        if self._failure is not None:
            self._fail(queue, self._failure)
            return
        events, self._events = self._events, []
        try:
            if tables := self._joined(queue, events):
                await loop.run_in_executor(self._threads, self._writer.commit_many, tables)
        except RowsLostError as error:
            self._events[:0] = events
            await self._write_apart(queue, error)
            return
        except Exception as error:  # noqa: BLE001  callers that wait must get any failure
            self._fail(queue, error)
            return
        for item in queue:
            if not item.done.done():  # the caller may have been cancelled
                item.done.set_result(None)
        for outage in passed_outages():
            self.report(outage.event("store"))
        self._ended = loop.time()
        self._commit_s = self._ended - started
        idle = self._maintenance is None or self._maintenance.done()
        if idle and self._writer.maintenance_due and self._failure is None:
            self._maintenance = loop.create_task(self._maintain())

    async def _maintain(self) -> None:
        """Maintain the tables; report each failure once until maintenance succeeds."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._writer.maintain)
        except FencedError:
            return  # the next commit fails for the same reason
        except Exception as error:  # noqa: BLE001  commits continue without maintenance
            said = one_line(error) or type(error).__name__
            if said not in self._unmaintained:
                self._unmaintained.add(said)
                _log.warning("tables cannot be maintained: %s", said)
                self.report(Event(EventKind.MAINTENANCE, "tables", detail={"error": said}))
        else:
            self._unmaintained.clear()

    async def _write_apart(self, queue: list[_Queued], error: RowsLostError) -> None:
        """Commit one by one what was queued, some of whose rows are lost."""
        if len(queue) > 1:
            for item in queue:
                await self._write([item])
        elif queue and not queue[0].done.done():
            queue[0].done.set_exception(error)

    def _fail(self, queue: list[_Queued], error: Exception) -> None:
        """Fail the queued commits and all later ones, so that no gap in the tables can arise.

        Events are not committed any more either: they would tell of rows that are not there.
        """
        self._events.clear()
        if not isinstance(error, RollartError):
            said = f"rows cannot be committed: {type(error).__name__}: {one_line(error)}"
            error = StoreError(said)
        self._failure = self._failure or error
        for item in queue:
            if not item.done.done():
                item.done.set_exception(error)

    def _joined(
        self, queue: list[_Queued], events: list[tuple[datetime, Event]]
    ) -> dict[str, Rows]:
        parts: dict[str, list[pa.Table]] = {}
        for item in queue:
            for table, rows in item.tables.items():
                parts.setdefault(table, []).append(rows)
        if events:
            parts.setdefault("events", []).append(events_table(events))
        return {table: self._locate(pa.concat_tables(rows)) for table, rows in parts.items()}


def _alike(queue: Sequence[_Queued]) -> Iterator[list[_Queued]]:
    """Divide a queue where rows of a table have other columns than those before: the rows of one
    may be in other processes, which get their description only."""
    part: list[_Queued] = []
    columns: dict[str, list[str]] = {}
    for item in queue:
        given = {table: rows.column_names for table, rows in item.tables.items()}
        if any(columns.get(table, names) != names for table, names in given.items()):
            yield part
            part, columns = [], {}
        columns |= given
        part.append(item)
    yield part

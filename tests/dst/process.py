"""The buffer's process: the real BufferService over commits that fail, as in the buffer actor.

The invariant: what the monitor is shown are the service's own answers.
"""

import asyncio
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from rollart_flow.control.buffer.buffer_service import BufferService, StoredBuffer
from rollart_flow.control.protocols import Change, Emit
from rollart_flow.errors import StoreError
from rollart_flow.simulation.cluster.buffer import TupleRows
from rollart_flow.types import Batch, Event, Sample, Trajectory
from tests.dst.log import Log
from tests.dst.monitor import Monitor
from tests.dst.plans import Plan
from tests.dst.tables import Commit, Tables, Writer, by_episode, sample_of
from tests.pending import pending_ids

_AGAIN_S = 0.05

Rows = tuple[Any, ...]
"""Rows of one table: trajectories, the batch of a manifest, or the number of a trained step."""


class FilteredRows(TupleRows[Any]):
    """The rows of all tables; a filter refuses some trajectories."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def episodes(self, rows: Rows) -> list[range]:
        begins = [place for place, row in enumerate(rows) if row.branch == 0]
        return [range(start, end) for start, end in pairwise([*begins, len(rows)])]

    def samples(self, rows: Rows) -> list[Sample]:
        return list(map(sample_of, by_episode(rows)))

    def refusals(self, rows: Rows) -> list[str | None]:
        return [
            "luck" if self._refuses(branches[0].episode_id) else None
            for branches in by_episode(rows)
        ]

    def _refuses(self, trajectory_id: str) -> bool:
        """Whether the filter refuses a row: a pure function of the row."""
        draw = zlib.crc32(f"{self._plan.seed}/{trajectory_id}".encode()) / 2**32
        return draw < self._plan.faults.filtered

    def newest(self, rows: Rows, column: str) -> int:
        return max(row.step if isinstance(row, Batch) else row for row in rows)


class FaultyCommitter:
    """Commits what is queued, again and again; implements `control.buffer.storage.RowCommitter`.

    Args:
        incarnation: number of the process within a run.
    """

    def __init__(self, writer: Writer, log: Log, emit: Emit, incarnation: int) -> None:
        self._writer = writer
        self._log = log
        self._emit = emit
        self._incarnation = incarnation
        self._transactions = 0
        self._queue: list[Mapping[str, Rows]] = []
        self._one_writer = asyncio.Lock()
        self._callers: dict[asyncio.Task[Any] | None, None] = {}
        self.reported: list[Event] = []
        """Events of this process, which are durable with the next commit."""

    def report(self, event: Event, at: datetime | None = None) -> None:
        self.reported.append(event)
        self._emit(event)

    async def commit(self, tables: Mapping[str, Rows], *, at_once: bool = False) -> None:
        """Commit rows together with all rows that wait; return once they are durable."""
        self._queue.append(tables)
        caller = asyncio.current_task()
        self._callers[caller] = None
        try:
            async with self._one_writer:
                queue, self._queue = self._queue, []
                if queue:
                    await self._write(queue)
        finally:
            del self._callers[caller]

    async def _write(self, queue: Sequence[Mapping[str, Rows]]) -> None:
        """Repeat a commit under the same transaction id until it succeeds."""
        self._transactions += 1
        rows = {
            table: tuple(row for each in queue for row in each.get(table, ()))
            for table in ("trajectories", "batches", "steps")
        }
        commit = Commit(
            f"{self._incarnation}.{self._transactions}",
            rows["trajectories"],
            next(iter(rows["batches"]), None),
            next(iter(rows["steps"]), None),
        )
        while True:
            try:
                await self._writer.write(self._sent(commit))
            except StoreError as error:
                self._log.write("fault", "commit", detail=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    def _sent(self, commit: Commit) -> Commit:
        """The commit of one try; `bugs` replaces this method."""
        return commit

    def die(self) -> None:
        """Cancel the commits in flight, which may have been written or not."""
        for caller in self._callers:
            if caller is not None:
                caller.cancel()


class WatchedBuffer(BufferService[Rows]):
    """The real service; it also tells the monitor which trajectories it has indexed."""

    monitor: Monitor

    def _add_to_index(self, rows: Rows, new: Sequence[Sample]) -> None:
        super()._add_to_index(rows, new)
        for sample in new:
            self.monitor.indexed(sample, len(self.index))


class BufferProcess:
    """Serves a BufferService that is restored from the tables alone.

    Args:
        incarnation: number of the process within a run.
    """

    def __init__(
        self,
        plan: Plan,
        tables: Tables,
        writer: Writer,
        monitor: Monitor,
        log: Log,
        emit: Emit,
        incarnation: int,
    ) -> None:
        self._monitor = monitor
        self._tables = tables
        self._committer = FaultyCommitter(writer, log, emit, incarnation)
        self.service = WatchedBuffer(
            plan.schedule,
            plan.group_size,
            FilteredRows(plan),
            self._committer,
            cursor=incarnation << 32,
        )
        self.service.monitor = monitor
        self.service.restore(_stored(tables))
        for sample in tables.recovered().pending:
            monitor.indexed(sample, len(self.service.index))

    async def note(self, event: Event) -> None:
        """Act on an event of the coordinator."""
        self.service.note([event])

    async def put(self, rows: tuple[Trajectory, ...]) -> None:
        """Commit trajectories, and return once they are durable. The first commit wins."""
        await self.service.put(rows)
        for branches in by_episode(rows):
            self._monitor.acknowledged(branches)

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Form the batch of a step; the trainer commits its manifest."""
        batch = await self.service.get_batch(step, version, size)
        self._monitor.handed_out(batch)
        return batch

    async def formed(self, step: int) -> Batch | None:
        """Return the batch of a step, if it was formed."""
        return await self.service.formed(step)

    async def hand_out(self, batch: Batch) -> None:
        """Hand out the rows of a batch, which another buffer may have formed."""
        self.service.adopt(batch)
        if self.service.batch_rows(batch.step) is None and batch.step not in self._tables.batches:
            self._monitor.violated("durability", f"nobody has the rows of step {batch.step}")

    async def write_manifest(self, batch: Batch) -> None:
        """Commit the manifest of a batch, which another buffer may have formed."""
        self.service.adopt(batch)
        await self.service.commit({"batches": (batch,)})
        self._monitor.formed(batch, pending_ids(self.service.index))

    async def record_step(self, step: int) -> None:
        """Commit the row of a trained step, once."""
        await self.service.commit({"steps": (step,)})

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Changes for the scheduler past a cursor."""
        return await self.service.changes(after)

    def die(self) -> Sequence[Event]:
        """Cancel the commits in flight, and return the events that this process has reported."""
        self._committer.die()
        return self._committer.reported


def _stored(tables: Tables) -> StoredBuffer[Rows]:
    recovered, published = tables.recovered(), tables.published
    return StoredBuffer(
        pending=recovered.pending,
        rows=_rows(tables, (sample.trajectory_id for sample in recovered.pending)),
        committed=len(tables.rows),
        known=recovered.known,
        closed=recovered.closed,
        batches=tables.manifests,
        untrained={
            batch.step: _rows(tables, batch.trajectory_ids)
            for batch in tables.manifests
            if batch.step > published
        },
        newest={"batches": max(tables.batches, default=0), "steps": published},
        changes=recovered.changes,
    )


def _rows(tables: Tables, episodes: Iterable[str]) -> Rows:
    """All rows of episodes, in this order."""
    return tuple(row for name in episodes for row in tables.branches[name])

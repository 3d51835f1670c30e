"""The buffer between producer and consumer: one Ray actor, and the only committer of the run.

`BufferActor` serves a `BufferService` over the run's Delta tables. If its process dies, Ray starts
another one and repeats the calls that were not answered: the new process rebuilds its state from
the tables, and all calls have the same effect when they are repeated.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.control.buffer.buffer_service import BufferService, StoredBuffer
from rollart_flow.control.loop.waits import Signal
from rollart_flow.control.protocols import Change
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.operators.arrow_rows import ArrowRows
from rollart_flow.operators.buffer_writer import BufferWriterActor
from rollart_flow.operators.committer import Committer
from rollart_flow.operators.filters import NamedFilter
from rollart_flow.operators.held_rows import BufferWriters
from rollart_flow.operators.recovery import (
    RecoveredRun,
    batch_of,
    recorded_boxes,
    recorded_reports,
    recover,
)
from rollart_flow.operators.row_descriptions import describe, filter_columns, without_diffs
from rollart_flow.resources import Remote, register
from rollart_flow.resources.blocking import report_waits
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.resources.nodes import restarted
from rollart_flow.rows import events_table, from_ipc, to_ipc
from rollart_flow.store import Run, RunStatus, RunWriter
from rollart_flow.store.lease_file import Tenure
from rollart_flow.types import Batch, Event, EventKind, Reason

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """Settings of the pipeline that the buffer needs."""

    schedule: Schedule
    group_size: int
    commit_rows: int
    commit_ms: float
    filters: tuple[NamedFilter, ...] = ()
    """Filters of trajectories; a trajectory passes if every filter is true for it."""
    group_filters: tuple[NamedFilter, ...] = ()
    """Filters of groups; a complete group passes if every filter is true for every member."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that filters read."""
        return filter_columns((*self.filters, *self.group_filters))


class BufferActor:
    """Actor that serves the run's `BufferService`; rows cross it as Arrow IPC streams."""

    def __init__(
        self,
        uri: str,
        settings: BufferSettings,
        tenure: Tenure | None = None,
        writers: Sequence[Remote[BufferWriterActor]] = (),
    ) -> None:
        self._uri = uri
        self._writers = BufferWriters(writers)
        self._settings = settings
        self._tenure = tenure
        self._replaces = restarted()
        self._opening: asyncio.Future[None] | None = None
        self._recovered: RecoveredRun | None = None
        """State of the run, until `start` returns it."""
        self._recorded: frozenset[tuple[datetime, str, str]] = frozenset()
        """Events that callers may report again, since a lost process did not answer them."""
        self._recorded_boxes: tuple[str, ...] = ()
        """Boxes whose rows may be sent again for the same reason."""
        self._batch_formed = Signal()

    @register("rank_zero")
    async def start(self) -> RecoveredRun:
        """Become the run's only writer, rebuild the buffer, and return the run's state."""
        await self._serving()
        recovered, self._recovered = self._recovered, None
        if recovered is None:  # a process that replaces a lost one is asked again
            recovered = (await asyncio.to_thread(recover, Run(self._uri))).without_rows()
        return recovered

    async def _serving(self) -> BufferService[pa.Table]:
        """Return the service, which is rebuilt first in a process that replaces a lost one."""
        self._opening = self._opening or asyncio.ensure_future(self._open())
        await asyncio.shield(self._opening)
        return self._service

    async def _open(self) -> None:
        settings, run = self._settings, Run(self._uri)
        report_waits(self._uri, "buffer")
        self._writers.clear()
        self._writer = await asyncio.to_thread(
            RunWriter.open, self._uri, self._tenure, merge=self._writers.merge
        )
        if self._replaces:
            self._recorded = await asyncio.to_thread(recorded_reports, run)
            self._recorded_boxes = await asyncio.to_thread(recorded_boxes, run)
            await asyncio.to_thread(self._writer.commit, "events", _crash("buffer"))
        recovered = await asyncio.to_thread(recover, run)
        self._committer = Committer(
            self._writer,
            max_rows=settings.commit_rows * max(1, len(self._writers)),
            interval_s=settings.commit_ms / 1000,
            locate=self._writers.located,
        )
        self._service: BufferService[pa.Table] = BufferService(
            settings.schedule,
            settings.group_size,
            ArrowRows(settings.filters, settings.group_filters),
            self._committer,
            cursor=recovered.crashes << 32,
            release=self._writers.release if self._writers else None,
        )
        self._service.restore(self._stored(recovered))
        self._recovered = None if self._replaces else recovered.without_rows()
        freeze_heap()

    def _stored(self, recovered: RecoveredRun) -> StoredBuffer[pa.Table]:
        assert recovered.pending_rows is not None
        control, untrained = recovered.control, recovered.untrained
        manifest = recovered.version if untrained is None else untrained.step
        rows = recovered.pending_rows
        if self._writers:
            rows = describe(rows, self._settings.columns)
        return StoredBuffer(
            pending=control.pending,
            rows=rows,
            committed=recovered.committed,
            known=control.known,
            closed=control.closed,
            batches=() if untrained is None else (untrained,),
            untrained={} if untrained is None else {manifest: Run(self._uri).batch(manifest)},
            newest={
                "batches": manifest,
                "steps": recovered.version,
                "evaluations": max(recovered.evaluated, default=-1),
            },
            changes=control.changes if self._replaces else (),
        )

    @register("rank_zero")
    async def succeed(self, died: str) -> tuple[RecoveredRun, int]:
        """Record that a process died, and return what its successor starts from.

        Returns:
            (state of the run, cursor from which the successor reads `changes`).
        """
        service = await self._serving()
        cursor = service.index.cursor
        # Events that the dead process reported are durable with this one.
        await self._committer.commit({"events": _crash(died)}, at_once=True)
        recovered = await asyncio.to_thread(recover, Run(self._uri))
        if recovered.untrained is None:
            formed = await service.formed(recovered.version + 1)
            recovered = replace(recovered, untrained=formed)
        return recovered.without_rows(), cursor

    @register("rank_zero")
    async def report(self, events: Sequence[tuple[datetime, Event]]) -> None:
        """Record events of another process with their UTC times; return once they are durable."""
        service = await self._serving()
        service.report([each for each in events if _key(*each) not in self._recorded])
        await self._committer.reported()

    @register("rank_zero")
    async def received(self) -> None:
        """Return after the events that the caller sent before have arrived."""
        await self._serving()

    @register("rank_zero")
    async def put(self, data: bytes, beside: Mapping[str, bytes] | None = None) -> None:
        """Commit training trajectories; see `BufferService.put`.

        Args:
            data: the rows as Arrow IPC, or what `BufferWriterActor.put` returned for them.
            beside: rows of further tables (`attempt_rows`) as Arrow IPC, if there are any.

        Raises:
            RowsLostError: the writer that held the rows died; the caller puts them again.
        """
        service = await self._serving()
        rows = {table: from_ipc(more) for table, more in (beside or {}).items()}
        await service.put(from_ipc(data), rows)

    @register("rank_zero")
    async def commit(self, tables: Mapping[str, bytes]) -> int:
        """Commit rows, given as Arrow IPC by table; see `BufferService.commit`."""
        service = await self._serving()
        rows = {table: from_ipc(data) for table, data in tables.items()}
        if "batches" in rows:
            batch = batch_of(rows["batches"])
            if batch.trajectory_ids:  # all rows of an offline run are drawn from elsewhere
                service.adopt(batch)
        return await service.commit(rows)

    @register("rank_zero")
    async def record_sandboxes(self, data: bytes) -> None:
        """Commit rows of `sandboxes`, given as Arrow IPC, with the next rows of other tables."""
        await self._serving()
        rows = from_ipc(data)
        known = pc.is_in(rows["sandbox_id"], pa.array(self._recorded_boxes, pa.string()))
        await self._committer.commit({"sandboxes": rows.filter(pc.invert(known))})

    @register("rank_zero")
    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Return the batch of a step; see `BufferService.get_batch`."""
        batch = await (await self._serving()).get_batch(step, version, size)
        self._batch_formed.notify()
        return batch

    @register("rank_zero")
    async def formed(self, step: int) -> Batch | None:
        """Return the batch of a step if it was formed; see `BufferService.formed`."""
        return await (await self._serving()).formed(step)

    @register("rank_zero")
    async def rows(self, batch: Batch) -> bytes:
        """Return the rows of a batch, without their diffs, as Arrow IPC.

        See `BufferService.batch_rows`.

        Rows that buffer writers hold are described only; `held_rows.BatchRows` gathers them. A
        trainer that died may have had its step recorded without knowing it; the next one trains the
        step again, from the tables.
        """
        service = await self._serving()
        service.adopt(batch)
        rows = service.batch_rows(batch.step)
        if rows is None:
            rows = await asyncio.to_thread(Run(self._uri).batch, batch.step)
        return to_ipc(without_diffs(rows))

    @register("rank_zero")
    async def next_rows(self, step: int) -> bytes:
        """Return the rows of a batch that is not formed yet, as `rows` does, once it is.

        They are then on their way while weights are exchanged and the next groups begin.

        Returns:
            Nothing if this buffer has no rows of the batch, since its step is trained, or since
            another buffer formed it: `rows` has them.
        """
        service = await self._serving()
        while (rows := service.batch_rows(step)) is None and step > service.newest_batch:
            await self._batch_formed.wait()
        return b"" if rows is None else to_ipc(without_diffs(rows))

    @register("rank_zero")
    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Return the changes that the scheduler applies; see `BufferService.changes`."""
        service = await self._serving()
        return await service.changes(after)

    @register("rank_zero")
    async def close(self, status: RunStatus, error: str | None = None) -> None:
        """Commit all queued rows and record how the run ended."""
        service = await self._serving()
        if status is RunStatus.FINISHED:  # any other run can be resumed with what is pending
            service.index.finish()
        await self._committer.close()
        await asyncio.to_thread(self._writer.close, status, error)


def _crash(died: str) -> pa.Table:
    _log.error("%s died; Ray has started another one, which goes on", died)
    detail = {"restarted": "alone"}
    event = Event(EventKind.CRASH, died, reason=Reason.WORKER_LOST, detail=detail)
    return events_table([(datetime.now(UTC), event)])


def _key(at: datetime, event: Event) -> tuple[datetime, str, str]:
    return at, str(event.kind), event.subject

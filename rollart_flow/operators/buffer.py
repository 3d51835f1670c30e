"""The buffer between producer and consumer: one Ray actor, and the only committer of the run.

`BufferActor` serves a `BufferService` over the run's Delta tables. A restart needs none of its
in-memory state, which is rebuilt from the tables.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.control.buffer.buffer_service import BufferService, StoredBuffer
from rollart_flow.control.protocols import Change
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.operators.committer import Committer
from rollart_flow.operators.filters import NamedFilter, group_refusal, refusals
from rollart_flow.operators.recovery import RecoveredRun, recover
from rollart_flow.resources import register
from rollart_flow.resources.garbage import freeze_heap
from rollart_flow.rows import from_ipc, samples, to_ipc
from rollart_flow.store import Run, RunStatus, RunWriter
from rollart_flow.store.lease import Tenure
from rollart_flow.types import Batch, Event, Sample

_LEAST_RUN = 4
"""Mean number of adjacent rows from which on rows are sliced, which copies none, not taken."""


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


class ArrowRows:
    """Row operations on Arrow tables; implements `control.buffer.storage.RowFormat`."""

    def __init__(
        self, filters: Sequence[NamedFilter] = (), group_filters: Sequence[NamedFilter] = ()
    ) -> None:
        self._filters = filters
        self._group_filters = group_filters

    def samples(self, rows: pa.Table) -> list[Sample]:
        return samples(rows)

    def take(self, rows: pa.Table, places: Sequence[int]) -> pa.Table:
        return rows.take(list(places))

    def pick(self, places: Sequence[tuple[pa.Table, int]]) -> pa.Table:
        runs: list[tuple[pa.Table, int, int]] = []
        for rows, place in places:
            if runs and runs[-1][0] is rows and sum(runs[-1][1:]) == place:
                runs[-1] = (rows, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((rows, place, 1))
        if len(runs) * _LEAST_RUN <= len(places):
            return pa.concat_tables(rows.slice(start, count) for rows, start, count in runs)
        first: dict[int, int] = {}
        parts: list[pa.Table] = []
        total = 0
        for rows, _ in places:
            if id(rows) not in first:
                first[id(rows)] = total
                parts.append(rows)
                total += rows.num_rows
        joined = pa.concat_tables(parts).combine_chunks()
        return joined.take([first[id(rows)] + place for rows, place in places])

    def with_staleness(self, rows: pa.Table, staleness: Sequence[int]) -> pa.Table:
        return rows.append_column("staleness", pa.array(staleness, pa.int32()))

    def refusals(self, rows: pa.Table) -> list[str | None]:
        return refusals(self._filters, rows)

    def group_refusal(self, members: Sequence[tuple[pa.Table, int]]) -> str | None:
        if not self._group_filters:
            return None
        return group_refusal(self._group_filters, self.pick(members))

    def newest(self, rows: pa.Table, column: str) -> int:
        newest: int = pc.max(rows[column]).as_py()
        return newest


class BufferActor:
    """Actor that serves the run's `BufferService`; rows cross it as Arrow IPC streams."""

    def __init__(self, uri: str, settings: BufferSettings, tenure: Tenure | None = None) -> None:
        self._uri = uri
        self._settings = settings
        self._tenure = tenure

    @register("rank_zero")
    async def start(self) -> RecoveredRun:
        """Become the run's only writer, rebuild the buffer, and return the run's state."""
        settings = self._settings
        self._writer = await asyncio.to_thread(RunWriter.open, self._uri, self._tenure)
        recovered = await asyncio.to_thread(recover, Run(self._uri))
        self._committer = Committer(
            self._writer, max_rows=settings.commit_rows, interval_s=settings.commit_ms / 1000
        )
        row_format = ArrowRows(settings.filters, settings.group_filters)
        self._service: BufferService[pa.Table] = BufferService(
            settings.schedule, settings.group_size, row_format, self._committer
        )
        self._service.restore(self._stored(recovered))
        freeze_heap()
        return recovered.without_rows()

    def _stored(self, recovered: RecoveredRun) -> StoredBuffer[pa.Table]:
        assert recovered.pending_rows is not None
        control, untrained = recovered.control, recovered.untrained
        manifest = recovered.version if untrained is None else untrained.step
        return StoredBuffer(
            pending=control.pending,
            rows=recovered.pending_rows,
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
        )

    @register("rank_zero")
    async def report(self, events: Sequence[tuple[datetime, Event]]) -> None:
        """Queue events of another process with their UTC times; return before they are durable."""
        self._service.report(events)

    @register("rank_zero")
    async def put(self, data: bytes) -> None:
        """Commit training trajectories, given as Arrow IPC; see `BufferService.put`."""
        await self._service.put(from_ipc(data))

    @register("rank_zero")
    async def commit(self, tables: Mapping[str, bytes]) -> int:
        """Commit rows, given as Arrow IPC by table; see `BufferService.commit`."""
        return await self._service.commit({table: from_ipc(data) for table, data in tables.items()})

    @register("rank_zero")
    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Return the batch of a step; see `BufferService.get_batch`."""
        return await self._service.get_batch(step, version, size)

    @register("rank_zero")
    async def rows(self, step: int) -> bytes:
        """Return the rows of a batch as Arrow IPC; see `BufferService.batch_rows`."""
        return to_ipc(self._service.batch_rows(step))

    @register("rank_zero")
    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Return the changes that the scheduler applies; see `BufferService.changes`."""
        return await self._service.changes(after)

    @register("rank_zero")
    async def close(self, status: RunStatus, error: str | None = None) -> None:
        """Commit all queued rows and record how the run ended."""
        await self._committer.close()
        await asyncio.to_thread(self._writer.close, status, error)

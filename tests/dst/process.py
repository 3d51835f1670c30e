"""The buffer's process: the real SampleBuffer behind commits that fail, as in the buffer actor.

The invariant: a trajectory is acknowledged, and known to the SampleBuffer, only once it is durable.
"""

import asyncio
import zlib
from collections.abc import Sequence

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.protocols import Change, Emit
from rollart_flow.errors import StoreError
from rollart_flow.types import Batch, Reason, Sample, Trajectory
from tests.dst.log import Log
from tests.dst.monitor import Monitor
from tests.dst.plans import Plan
from tests.dst.tables import Commit, Tables, Writer, sample_of

_AGAIN_S = 0.05


class BufferProcess:
    """Commits rows and forms batches of committed rows; restored from the tables alone.

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
        self._plan = plan
        self._writer = writer
        self._monitor = monitor
        self._log = log
        self._incarnation = incarnation
        self._transactions = 0
        self._queue: list[Trajectory] = []
        self._one_writer = asyncio.Lock()
        self._committing: dict[str, asyncio.Task[None]] = {}
        self._recorded = {batch.step: batch for batch in tables.manifests}
        self._trained = tables.published
        self.samples = SampleBuffer(
            plan.schedule.bound,
            plan.group_size,
            emit,
            selection=plan.schedule.selection,
            cursor=incarnation << 32,
        )
        self._restore(tables)

    def _restore(self, tables: Tables) -> None:
        recovered = tables.recovered()
        self.samples.restore(
            recovered.pending,
            batches=self._recorded.values(),
            known=recovered.known,
            closed=recovered.closed,
            changes=recovered.changes,
        )
        for sample in recovered.pending:
            self._monitor.indexed(sample, len(self.samples))
            if self._refuses(sample.trajectory_id):
                self.samples.drop(sample.trajectory_id, Reason.FILTERED)

    async def abandon(self, group_id: str) -> None:
        """Evict the remaining members of an abandoned group."""
        self.samples.evict(group_id, Reason.GROUP_ABANDONED)

    async def put(self, row: Trajectory) -> None:
        """Commit a trajectory, and return once it is durable. The first commit wins."""
        await self._durable(row)
        self._monitor.acknowledged(row.trajectory_id)

    async def _durable(self, row: Trajectory) -> None:
        key = row.trajectory_id
        if key not in self._committing:
            if self.samples.knows(key):
                return
            self._committing[key] = asyncio.ensure_future(self._commit_row(row))
            self._committing[key].add_done_callback(lambda done: self._committing.pop(key))
        await asyncio.shield(self._committing[key])

    async def _commit_row(self, row: Trajectory) -> None:
        """Commit a row together with all rows that wait."""
        self._queue.append(row)
        async with self._one_writer:
            rows, self._queue = self._queue, []
            if rows:
                await self._write(rows)
                for written in rows:
                    self._index(sample_of(written))

    async def _write(
        self, rows: Sequence[Trajectory] = (), batch: Batch | None = None, step: int | None = None
    ) -> None:
        """Repeat a commit under the same transaction id until it succeeds."""
        self._transactions += 1
        transaction = f"{self._incarnation}.{self._transactions}"
        commit = Commit(transaction, tuple(rows), batch, step)
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

    def _index(self, sample: Sample) -> None:
        refused = Reason.FILTERED if self._refuses(sample.trajectory_id) else None
        self.samples.put(sample, refused)
        self._monitor.indexed(sample, len(self.samples))

    def _refuses(self, trajectory_id: str) -> bool:
        """Whether the filter refuses a row: a pure function of the row."""
        draw = zlib.crc32(f"{self._plan.seed}/{trajectory_id}".encode()) / 2**32
        return draw < self._plan.faults.filtered

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Form the batch of a step, and commit its manifest."""
        batch = await self.samples.get_batch(step, version, size)
        async with self._one_writer:
            if step not in self._recorded:
                await self._write(batch=batch)
                self._recorded[step] = batch
        self._monitor.formed(self._recorded[step], self.samples.pending_ids)
        return self._recorded[step]

    async def record_step(self, step: int) -> None:
        """Commit the row of a trained step, once."""
        async with self._one_writer:
            if step > self._trained:
                await self._write(step=step)
                self._trained = step

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Changes for the scheduler past a cursor."""
        return await self.samples.changes(after)

    def die(self) -> None:
        """Cancel the commits in flight, which may have been written or not."""
        for task in self._committing.values():
            task.cancel()

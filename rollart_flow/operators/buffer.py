"""The buffer between the two pipelines: an Arrow index in memory over the tables of the run.

One Ray actor; the only committer of the run. `put` answers once rows are durable, and only then
does the SampleBuffer learn of them, so that whatever is trained on is in the table. Nothing of the
index is needed to go on after a crash: it is rebuilt from the tables.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.control.buffer.drop_event import drop_event
from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.protocols import Change
from rollart_flow.control.schedule.schedules import Schedule
from rollart_flow.operators.committer import Committer
from rollart_flow.operators.filters import NamedFilter, group_refusal, refusals
from rollart_flow.operators.ipc import decode, encode
from rollart_flow.operators.recovery import RecoveredRun, recover
from rollart_flow.rows import events_table, samples
from rollart_flow.store import Run, RunStatus, RunWriter
from rollart_flow.types import Batch, Event, EventKind, Reason, Sample


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """What the buffer needs to know of the pipeline."""

    schedule: Schedule
    group_size: int
    commit_rows: int
    commit_ms: float
    filters: tuple[NamedFilter, ...] = ()
    """A trajectory is kept where all are true."""
    group_filters: tuple[NamedFilter, ...] = ()
    """A complete group is kept where all are true of every member."""


@dataclass(frozen=True, slots=True)
class _CommitRecord:
    """The newest of what is committed in order of its number."""

    number: int
    commit: asyncio.Future[None] | None = None
    """Done once it is durable; None where it was found in the tables."""


_NUMBERED = {"steps": "step", "batches": "step", "evaluations": "policy_version"}
"""Tables whose rows are committed once for each number, in ascending order, and its column."""


class BufferActor:
    """Commits rows of every table, and forms batches of what was committed."""

    def __init__(self, uri: str, settings: BufferSettings) -> None:
        self._uri = uri
        self._settings = settings
        self._events: list[tuple[datetime, Event]] = []
        self._rows: dict[str, pa.Table] = {}
        self._batches: dict[int, pa.Table] = {}
        self._committing: dict[str, asyncio.Future[None]] = {}
        self._committed = 0

    async def start(self) -> RecoveredRun:
        """Take the run over and rebuild the index; what the tables say about where to go on."""
        self._writer = await asyncio.to_thread(RunWriter.open, self._uri)
        self._samples = SampleBuffer(
            self._settings.schedule.bound,
            self._settings.group_size,
            self.emit,
            selection=self._settings.schedule.selection,
            judge=self._judge if self._settings.group_filters else None,
        )
        recovered = await asyncio.to_thread(recover, Run(self._uri))
        self._restore(recovered)
        self._committer = Committer(
            self._writer,
            max_rows=self._settings.commit_rows,
            interval_s=self._settings.commit_ms / 1000,
            take_events=self._take_events,
        )
        return recovered.without_rows()

    def _restore(self, recovered: RecoveredRun) -> None:
        pending, untrained = recovered.control.pending, recovered.untrained
        self._committed = len(pending) + len(recovered.control.known)
        assert recovered.pending_rows is not None
        # A filter may have refused a row whose drop was not committed any more.
        refused = refusals(self._settings.filters, recovered.pending_rows)
        kept = []
        for place, sample in enumerate(pending):
            if refused[place] is None:
                kept.append(sample)
                self._rows[sample.trajectory_id] = recovered.pending_rows.slice(place, 1)
        self._samples.restore(
            kept,
            batches=() if untrained is None else (untrained,),
            known=recovered.control.known,
            closed=recovered.control.closed,
        )
        if untrained is not None:
            self._batches[untrained.step] = Run(self._uri).batch(untrained.step)
        for sample, by in zip(pending, refused, strict=True):
            if by is not None:
                self._samples.put(sample, refused=Reason.FILTERED, by=by)
        self._forget()
        newest = recovered.version if untrained is None else untrained.step
        evaluated = max(recovered.evaluated, default=-1)
        self._recorded = {
            "batches": _CommitRecord(newest),
            "steps": _CommitRecord(recovered.version),
            "evaluations": _CommitRecord(evaluated),
        }

    def emit(self, event: Event) -> None:
        """Report an event of this process; it is committed with the next rows."""
        self._events.append((datetime.now(UTC), event))
        committer: Committer | None = getattr(self, "_committer", None)
        if committer is not None:
            committer.wake()

    def _take_events(self) -> pa.Table | None:
        taken, self._events = self._events, []
        return events_table(taken) if taken else None

    async def report(self, events: Sequence[tuple[datetime, Event]]) -> None:
        """Commit events of another process; answers before they are durable.

        What is left of a group that was abandoned leaves with it.
        """
        self._events.extend(events)
        for _, event in events:
            if event.kind is EventKind.ABANDON:
                self._samples.evict(event.subject, Reason.GROUP_ABANDONED)
        self._forget()
        self._committer.wake()

    async def put(self, data: bytes) -> None:
        """Commit trajectories of the training split (Arrow IPC); answers once they are durable.

        A trajectory that was committed before is passed over: the first commit wins.

        Raises:
            StoreError: nothing of it was written.
        """
        rows = decode(data)
        arrived = samples(rows)
        waits = [self._committing[s.trajectory_id] for s in arrived if self._is_committing(s)]
        fresh = [
            not self._is_committing(s) and not self._samples.knows(s.trajectory_id) for s in arrived
        ]
        if any(fresh):
            new = [s for s, is_new in zip(arrived, fresh, strict=True) if is_new]
            await self._commit_trajectories(rows.filter(pa.array(fresh)), new)
        if waits:
            await asyncio.gather(*waits)

    def _is_committing(self, sample: Sample) -> bool:
        return sample.trajectory_id in self._committing

    async def _commit_trajectories(self, rows: pa.Table, new: Sequence[Sample]) -> None:
        done = asyncio.get_running_loop().create_future()
        self._committing.update({sample.trajectory_id: done for sample in new})
        try:
            await self._committer.commit({"trajectories": rows})
        except BaseException as error:
            done.set_exception(error)
            done.exception()
            raise
        else:
            done.set_result(None)
        finally:
            for sample in new:
                del self._committing[sample.trajectory_id]
        self._committed += len(new)
        self._index(rows, new)

    def _index(self, rows: pa.Table, new: Sequence[Sample]) -> None:
        refused = refusals(self._settings.filters, rows)
        for place, sample in enumerate(new):
            by = refused[place]
            if sample.trainable:
                self._rows[sample.trajectory_id] = rows.slice(place, 1)
            self._samples.put(sample, refused=None if by is None else Reason.FILTERED, by=by)
            if by is not None and sample.filtered:  # before reward, so that it is never scored
                self.emit(drop_event(EventKind.DROP, sample, Reason.FILTERED, by=by))
        self._forget()

    def _judge(self, members: Sequence[str]) -> str | None:
        """See `control.buffer.sample_buffer.Judge`."""
        rows = pa.concat_tables([self._rows[trajectory_id] for trajectory_id in members])
        return group_refusal(self._settings.group_filters, rows)

    def _forget(self) -> None:
        """Let go of rows that the SampleBuffer holds no more."""
        if len(self._rows) > len(self._samples):
            pending = self._samples.pending_ids
            self._rows = {key: row for key, row in self._rows.items() if key in pending}

    async def commit(self, tables: Mapping[str, bytes]) -> int:
        """Commit rows of any tables, together and at once, and answer when they are durable.

        The manifest of a step, a step and the scores of a version are committed once: an operator
        that died and runs again sends them again.

        Returns:
            Trajectories of the training split that the run has committed by then.
        """
        decoded = {table: decode(data) for table, data in tables.items()}
        closing = next((table for table in _NUMBERED if table in decoded), None)
        if closing is None:
            await self._committer.commit(decoded, at_once=True)
            return self._committed
        number = pc.max(decoded[closing][_NUMBERED[closing]]).as_py()
        recorded = self._recorded[closing]
        if number > recorded.number:
            commit = asyncio.ensure_future(self._committer.commit(decoded, at_once=True))
            self._recorded[closing] = recorded = _CommitRecord(number, commit)
        if recorded.commit is not None:
            await asyncio.shield(recorded.commit)
        if closing == "steps":
            self._batches.pop(number, None)
        return self._committed

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Form the batch of a step; see `control.protocols.Buffered.get_batch`."""
        batch = await self._samples.get_batch(step, version, size)
        if step not in self._batches:
            rows = pa.concat_tables([self._rows[key] for key in batch.trajectory_ids])
            staleness = pa.array(batch.staleness, pa.int32())
            self._batches[step] = rows.append_column("staleness", staleness)
            self._forget()
        return batch

    async def rows(self, step: int) -> bytes:
        """Rows of a batch that was formed, in its order, as Arrow IPC.

        They have `staleness`, and once their manifest was written `advantage` and `weight`.
        """
        return encode(self._batches[step])

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Changes for the scheduler; see `control.protocols.Buffered.changes`."""
        return await self._samples.changes(after)

    async def close(self, status: RunStatus, error: str | None = None) -> None:
        """Commit what is queued and record how the run ended."""
        await self._committer.close()
        await asyncio.to_thread(self._writer.close, status, error)

"""BufferService: commits rows of every table and forms batches of committed trajectories.

The service holds all logic of the buffer's process. In a run, a Ray actor serves it over Delta
tables; the simulator and the fuzzer run the same class over a model of storage. The invariants:
`put` returns once rows are durable, and only then does the SampleBuffer learn of them, so that
every row of a batch is in the table; the first commit of a trajectory wins; rows of a step, a
manifest or an evaluation are committed once; the branches of an attempt are committed together,
trained on together and leave together; the rows in memory are those of pending trajectories
and of untrained batches.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Generic

from rollart_flow.control.buffer.pending import drop_event
from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.buffer.storage import R, RowCommitter, RowFormat
from rollart_flow.control.protocols import Change
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.types import Batch, Event, EventKind, Reason, Sample

NUMBERED = {"steps": "step", "batches": "step", "evaluations": "policy_version"}
"""Number column by table, for tables that commit rows once per number in ascending order."""


@dataclass(frozen=True, slots=True)
class StoredBuffer(Generic[R]):
    """State of a buffer, read from the tables of its run."""

    pending: Sequence[Sample]
    """Trajectories that were neither trained on, dropped nor evicted, in commit order."""
    rows: R
    """Rows of the pending episodes, in the order of `pending`."""
    committed: int
    """Number of committed training rows."""
    known: Sequence[str] = ()
    """Ids of other committed trajectories that may arrive again, the oldest first."""
    closed: Mapping[str, Reason] = field(default_factory=dict)
    """Groups that left, with the reason for dropping late members."""
    batches: Sequence[Batch] = ()
    """Batches whose manifest is written, including at least the newest one."""
    untrained: Mapping[int, R] = field(default_factory=dict)
    """Rows of batches that are not trained yet, by step."""
    newest: Mapping[str, int] = field(default_factory=dict)
    """Largest committed number by table of `NUMBERED`; 0 for missing tables."""
    changes: Sequence[Change] = ()
    """Changes that a scheduler which outlived the earlier buffer may not have read."""


@dataclass(frozen=True, slots=True)
class _NumberedCommit:
    """The newest commit to one numbered table."""

    number: int
    durable: asyncio.Future[None] | None = None
    """Future of the commit; None if the rows were in the tables when the buffer started."""


class BufferService(Generic[R]):
    """Implements `control.protocols.Buffered`, and commits rows of every table.

    Args:
        schedule: its bound and its selection determine the batches.
        group_size: trajectories of one task that are trained together.
        row_format: operations on rows.
        committer: makes rows and events durable.
        cursor: start cursor of `changes`, above all cursors of a buffer that this one replaces.
        release: called with rows of `trajectories` that the service needs no more, if they are held
            elsewhere and described here.
    """

    def __init__(
        self,
        schedule: Schedule,
        group_size: int,
        row_format: RowFormat[R],
        committer: RowCommitter[R],
        *,
        cursor: int = 0,
        release: Callable[[R], None] | None = None,
    ) -> None:
        self._format = row_format
        self._committer = committer
        self._release = release
        self._left: list[str] = []
        """Ids of trajectories that are not pending any more, but may have a row here."""
        self.index = SampleBuffer(
            schedule.bound,
            group_size,
            committer.report,
            selection=schedule.selection,
            judge=self._judge,
            cursor=cursor,
            left=self._left.append,
        )
        self._rows: dict[str, tuple[R, Sequence[int]]] = {}
        """Rows of pending episodes, by id: their positions in the rows that they came with."""
        self._batches: dict[int, R] = {}
        """Rows of batches that are not trained yet, by step."""
        self._committing: dict[str, asyncio.Future[None]] = {}
        self._committed = 0
        self._numbered = {table: _NumberedCommit(0) for table in NUMBERED}

    def restore(self, stored: StoredBuffer[R]) -> None:
        """Restore the state from the tables, before the first `put`."""
        self._committed = stored.committed
        self._numbered |= {table: _NumberedCommit(n) for table, n in stored.newest.items()}
        self._batches.update(stored.untrained)
        # A filter may have refused a row whose DROP event was not committed before the restart.
        refused = self._format.refusals(stored.rows)
        episodes = self._format.episodes(stored.rows)
        accepted = []
        for sample, places, by in zip(stored.pending, episodes, refused, strict=True):
            if by is None:
                accepted.append(sample)
                self._rows[sample.trajectory_id] = (stored.rows, places)
        self.index.restore(
            accepted,
            batches=stored.batches,
            known=stored.known,
            closed=stored.closed,
            changes=stored.changes,
        )
        for sample, by in zip(stored.pending, refused, strict=True):
            if by is not None:
                self.index.put(sample, refused=Reason.FILTERED, by=by)
        self._release_rows()

    def report(self, events: Sequence[tuple[datetime, Event]]) -> None:
        """Record events of another process with their UTC times, without waiting."""
        for at, event in events:
            self._committer.report(event, at)
        self.note([event for _, event in events])

    def note(self, events: Sequence[Event]) -> None:
        """Evict the pending members of the groups that events report as abandoned."""
        for event in events:
            if event.kind is EventKind.ABANDON:
                self.index.evict(event.subject, Reason.GROUP_ABANDONED)
        self._release_rows()

    async def put(self, rows: R, beside: Mapping[str, R] = MappingProxyType({})) -> None:
        """Commit episodes of the training split, with all of their rows; return once durable.

        An episode that was committed before, or is in the rows before, is skipped with its rows of
        further tables: the first commit wins, also if the attempt ran twice and branched otherwise.

        Args:
            rows: rows of `trajectories`.
            beside: rows of further tables, which are committed together with them.

        Raises:
            StoreError: none of the new rows was written.
        """
        arrived = self._format.samples(rows)
        under_way = [
            self._committing[sample.trajectory_id]
            for sample in arrived
            if sample.trajectory_id in self._committing
        ]
        new: dict[str, int] = {}
        for place, sample in enumerate(arrived):
            if self._is_new(sample):
                new.setdefault(sample.trajectory_id, place)  # it may be in the rows twice
        episodes, chosen = self._format.episodes(rows), list(new.values())
        if len(chosen) < len(arrived):
            known = sorted(set(range(len(arrived))).difference(chosen))
            self._released([(rows, episodes[place]) for place in known])
        if chosen:
            places = [place for each in chosen for place in episodes[each]]
            fresh = rows if len(chosen) == len(arrived) else self._format.take(rows, places)
            samples = [arrived[place] for place in chosen]
            if len(chosen) < len(arrived):
                ids = list(new)
                beside = {t: self._format.rows_of(t, more, ids) for t, more in beside.items()}
            commit = asyncio.ensure_future(self._commit_episodes(fresh, samples, beside))
            self._committing.update(dict.fromkeys(new, commit))
            under_way.append(commit)
        if under_way:
            # Shielded: the committer commits what it was given, even if a caller is cancelled.
            await asyncio.gather(*map(asyncio.shield, under_way))

    def _is_new(self, sample: Sample) -> bool:
        key = sample.trajectory_id
        return key not in self._committing and not self.index.knows(key)

    async def _commit_episodes(
        self, rows: R, new: Sequence[Sample], beside: Mapping[str, R]
    ) -> None:
        episodes = self._format.episodes(rows)
        try:
            await self._committer.commit({"trajectories": rows, **beside})
        except BaseException:
            self._released([(rows, places) for places in episodes])
            raise
        finally:
            for sample in new:
                del self._committing[sample.trajectory_id]
        self._committed += sum(map(len, episodes))
        self._add_to_index(rows, new)

    def _add_to_index(self, rows: R, new: Sequence[Sample]) -> None:
        refused, episodes = self._format.refusals(rows), self._format.episodes(rows)
        for sample, places, by in zip(new, episodes, refused, strict=True):
            self._rows[sample.trajectory_id] = (rows, places)
            self.index.put(sample, refused=None if by is None else Reason.FILTERED, by=by)
            if by is not None and sample.filtered:  # filtered before the reward, so never scored
                self._committer.report(drop_event(EventKind.DROP, sample, Reason.FILTERED, by=by))
        self._release_rows()

    def _judge(self, members: Sequence[str]) -> str | None:
        """Return the filter that refuses a complete group (`Judge` of `sample_buffer`), or None."""
        return self._format.group_refusal(_flat(self._rows[name] for name in members))

    def _release_rows(self) -> None:
        """Remove rows from memory that are no longer pending in the SampleBuffer."""
        self._released([self._rows.pop(key) for key in self._left if key in self._rows])
        self._left.clear()

    def _released(self, episodes: Sequence[tuple[R, Sequence[int]]]) -> None:
        if self._release is not None and episodes:
            self._release(self._format.pick(_flat(episodes)))

    async def commit(self, tables: Mapping[str, R]) -> int:
        """Commit rows of any tables atomically and without delay; return once they are durable.

        Rows of a table of `NUMBERED` are committed once per number, since a restarted operator
        sends them again.

        Returns:
            Number of training rows that the run has committed by then.
        """
        table = next((name for name in NUMBERED if name in tables), None)
        if table is None:
            await self._committer.commit(tables, at_once=True)
            return self._committed
        number = self._format.newest(tables[table], NUMBERED[table])
        recorded = self._numbered[table]
        if number > recorded.number:
            durable = asyncio.ensure_future(self._committer.commit(tables, at_once=True))
            self._numbered[table] = recorded = _NumberedCommit(number, durable)
        if recorded.durable is not None:
            await asyncio.shield(recorded.durable)
        trained = self._batches.pop(number, None) if table == "steps" else None
        if trained is not None and self._release is not None:
            self._release(trained)
        return self._committed

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Return the batch of a step, as `control.protocols.Buffered.get_batch` describes."""
        batch = await self.index.get_batch(step, version, size)
        self._hold(batch)
        return batch

    async def formed(self, step: int) -> Batch | None:
        """Return the batch of a step, as `control.protocols.Buffered.formed` describes."""
        return await self.index.formed(step)

    def adopt(self, batch: Batch) -> None:
        """Take over a batch of a lost buffer, whose manifest may not be in the tables yet."""
        if batch.step > self._numbered["batches"].number:
            self.index.adopt(batch)
            self._hold(batch)

    def _hold(self, batch: Batch) -> None:
        # A repeated call may come after the step is recorded, when its rows are gone.
        if batch.step not in self._batches and batch.step > self._numbered["steps"].number:
            episodes = [self._rows.pop(key) for key in batch.trajectory_ids]
            rows = self._format.pick(_flat(episodes))
            aged = zip(batch.staleness, episodes, strict=True)
            staleness = [age for age, (_, places) in aged for _ in places]
            self._batches[batch.step] = self._format.with_staleness(rows, staleness)
        self._release_rows()

    @property
    def newest_batch(self) -> int:
        """Step of the newest batch that was formed, here or in a buffer before this one."""
        return max(self.index.newest_batch, self._numbered["batches"].number)

    def batch_rows(self, step: int) -> R | None:
        """Return the rows of a formed batch, in its order; None once its step is recorded.

        The rows have `staleness`; rows that were read from the tables also have `advantage` and
        `weight`.
        """
        return self._batches.get(step)

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Return changes past a cursor, as `control.protocols.Buffered.changes` describes."""
        return await self.index.changes(after)


def _flat(episodes: Iterable[tuple[R, Sequence[int]]]) -> list[tuple[R, int]]:
    """Return single rows of episodes, for `RowFormat.pick`."""
    return [(rows, place) for rows, places in episodes for place in places]

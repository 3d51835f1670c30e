"""SampleBuffer: which committed trajectories are pending, and which of them form a batch.

It holds names and versions, no token data, and is told of a trajectory after its commit. The
invariants: nothing pending, and so nothing in a batch, violates the bound (ROLLART section 6.2,
asynchronous bound and buffer management); a trajectory counts once, however often it arrives;
whatever leaves without being trained on leaves an event; what is remembered is bounded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rollart_flow.control.buffer.drop_event import drop_event
from rollart_flow.control.buffer.pending import PendingGroup, PendingGroups
from rollart_flow.control.ids import start_version
from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import Change, Emit
from rollart_flow.control.schedule.selection import Select, oldest_first
from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.types import Batch, EventKind, Reason, Sample

_KEPT_BATCHES = 8

Judge = Callable[[Sequence[str]], str | None]
"""Asked once about a complete group, by the ids of its members: the name of the filter that refuses
it, or None. What is refused is evicted whole, and the scheduler admits another group: dynamic
sampling (DAPO; ROLL Flash section 5.1.1)."""


class SampleBuffer:
    """The policy part of the buffer; the tables are written by who holds it.

    Args:
        bound: what is too old.
        group_size: trajectories of one task that are trained together.
        emit: where evictions and drops are reported, one event per trajectory.
        selection: which complete groups form a batch.
        judge: which complete groups are refused; None refuses none.
        memory: ids of trajectories and groups that left, remembered to recognize late arrivals.
        cursor: where `changes` starts; above all cursors of a buffer that this one replaces.
    """

    def __init__(
        self,
        bound: Bound,
        group_size: int,
        emit: Emit,
        *,
        selection: Select = oldest_first,
        judge: Judge | None = None,
        memory: int = 65_536,
        cursor: int = 0,
    ) -> None:
        if group_size < 1:
            raise SettingsError(f"group_size is {group_size}, but must be at least 1")
        self._bound = bound
        self._group_size = group_size
        self._emit = emit
        self._select = selection
        self._judge = judge
        self._pending = PendingGroups(group_size, memory)
        self._batches: BoundedDict[int, Batch] = BoundedDict(_KEPT_BATCHES)
        self._last_step = 0
        self._served = 0
        """Newest version that anybody asked for a batch under."""
        self._changes: ReplayableQueue[Change] = ReplayableQueue("changes", start=cursor)
        self._complete = Signal()

    def __len__(self) -> int:
        """Pending trajectories."""
        return len(self._pending)

    @property
    def complete_groups(self) -> int:
        """Groups that have all members."""
        return len(self._pending.ready())

    @property
    def pending_ids(self) -> frozenset[str]:
        """Ids of pending trajectories."""
        return frozenset(key for group in self._pending.groups for key in group.samples)

    def knows(self, trajectory_id: str) -> bool:
        """Whether this trajectory arrived before, so that its row must not be written again."""
        return self._pending.knows(trajectory_id)

    def put(self, sample: Sample, refused: Reason | None = None, by: str | None = None) -> bool:
        """Take a committed trajectory of the training split; False where it was known.

        What cannot be trained on is only reported. What comes after its group was complete, was
        trained on or has left is dropped with the reason.

        Args:
            sample: the trajectory.
            refused: why it is dropped at once, as by a filter. It never counts as a member, so
                that its group is not taken for complete in between.
            by: name of the filter.
        """
        if self.knows(sample.trajectory_id):
            return False
        if refused is not None and sample.trainable:
            self._changes.publish(Change(committed=replace(sample, scored=False)))
            self._pending.forget(sample.trajectory_id)
            self._report_drop(sample, refused, by)
            return True
        self._changes.publish(Change(committed=sample))
        self._take(sample)
        return True

    def _take(self, sample: Sample) -> None:
        if not sample.trainable:
            self._pending.forget(sample.trajectory_id)
        elif reason := self._pending.refusal(sample.group_id):
            self._pending.forget(sample.trajectory_id)
            self._report_drop(sample, reason)
        else:
            group = self._pending.add(sample)
            self._evict_stale((group,))
            if self._pending.is_ready(group.group_id):
                self._completed(group)

    def _completed(self, group: PendingGroup) -> None:
        by = None if self._judge is None else self._judge(tuple(group.samples))
        if by is None or not self.evict(group.group_id, Reason.GROUP_FILTERED, by=by):
            self._complete.notify()

    def drop(self, trajectory_id: str, reason: Reason) -> bool:
        """Take one pending trajectory out, as a filter does; False where it is not pending.

        Its group lacks a member from then on, which the scheduler replaces.
        """
        sample = self._pending.remove(trajectory_id)
        if sample is None:
            return False
        self._report_drop(sample, reason)
        return True

    def _report_drop(self, sample: Sample, reason: Reason, by: str | None = None) -> None:
        self._emit(drop_event(EventKind.DROP, sample, reason, by=by))
        self._changes.publish(Change(dropped=(sample.trajectory_id, reason)))

    def evict(
        self, group_id: str, reason: Reason, version: int | None = None, by: str | None = None
    ) -> bool:
        """Take a whole group out without training on it; False where nothing of it is pending.

        Members that arrive later are dropped. `by` is the name of the filter that refused it.
        """
        samples = self._pending.close(group_id, Reason.GROUP_EVICTED)
        for sample in samples:
            self._emit(drop_event(EventKind.EVICT, sample, reason, version, by))
        if samples:
            self._changes.publish(Change(evicted=(group_id, reason)))
        return bool(samples)

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Evict what violates the bound, wait for enough complete groups, form the batch.

        Args:
            step: training step; asked again it gets the same batch.
            version: the policy version that the engines serve. The newest of all that asked
                counts: who asked earlier may have died since.
            size: trajectories, a multiple of the group size.

        Raises:
            SettingsError: the size is not such a multiple.
            RunFailedError: the batch of this step was formed too long ago to be remembered.
        """
        if size < 1 or size % self._group_size:
            raise SettingsError(
                f"batch_size is {size}, but must be a multiple of group_size {self._group_size}"
            )
        if version > self._served:
            self._served = version
            self._evict_stale(self._pending.groups)
        while (batch := self._form(step, size)) is None:
            with waiting(f"get_batch(step={step})"):
                await self._complete.wait()
        return batch

    def _form(self, step: int, size: int) -> Batch | None:
        if (formed := self._batches.get(step)) is not None:
            return formed
        if step <= self._last_step:
            raise RunFailedError(
                f"the batch of step {step} is forgotten, since step {self._last_step} was formed "
                "after it; read it from the tables"
            )
        chosen = self._select(self._pending.ready(), size // self._group_size)
        if chosen is None:
            return None
        batch = self._consume(step, self._served, [group.group_id for group in chosen])
        self._batches.add(step, batch)
        self._last_step = step
        return batch

    def _evict_stale(self, groups: Iterable[PendingGroup]) -> None:
        """Of these groups, evict what is too old under the newest version asked under."""
        stale = [g.group_id for g in groups if self._bound.is_stale(self._served, g.start)]
        for group_id in stale:
            self.evict(group_id, Reason.STALENESS_BOUND, self._served)

    def _consume(self, step: int, version: int, group_ids: list[str]) -> Batch:
        samples: list[Sample] = []
        for group_id in group_ids:
            samples += self._pending.close(group_id, Reason.GROUP_COMPLETE)
            self._changes.publish(Change(consumed=group_id))
        return Batch(
            step=step,
            policy_version=version,
            trained_version=step - 1,
            trajectory_ids=tuple(sample.trajectory_id for sample in samples),
            group_ids=tuple(sample.group_id for sample in samples),
            staleness=tuple(self._bound.staleness(version, start_version(s)) for s in samples),
        )

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Wait for changes past the cursor; (new cursor, changes). Acknowledges up to it."""
        return await self._changes.read(after)

    @property
    def cursor(self) -> int:
        """Cursor of `changes` now. A scheduler that starts over takes it before it reads the
        tables, so that nothing falls between the two."""
        return self._changes.cursor

    def restore(
        self,
        samples: Iterable[Sample],
        *,
        batches: Iterable[Batch] = (),
        known: Iterable[str] = (),
        closed: Mapping[str, Reason] | None = None,
        changes: Iterable[Change] = (),
    ) -> None:
        """Continue from the tables, on an empty buffer.

        Args:
            samples: committed trajectories that were neither trained on, nor dropped, nor evicted,
                in the order of their commits.
            batches: at least the newest that was formed, if any was.
            known: other trajectory ids that are committed, the oldest first.
            closed: groups that left, with the reason that late members are dropped for.
            changes: what a scheduler that outlived the earlier buffer may not have read.
        """
        for batch in batches:
            self._batches.add(batch.step, batch)
            self._last_step = max(self._last_step, batch.step)
        for trajectory_id in known:
            self._pending.forget(trajectory_id)
        for group_id, late in (closed or {}).items():
            self._pending.close(group_id, late)
        for change in changes:
            self._changes.publish(change)
        for sample in samples:
            self._take(sample)

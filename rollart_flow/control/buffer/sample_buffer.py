"""SampleBuffer: tracks pending committed trajectories and forms batches of them.

The buffer holds ids and versions, no token data, and receives a trajectory after its commit. The
invariants: no pending trajectory, and so none in a batch, violates the bound (ROLLART section 6.2,
asynchronous bound and buffer management); a trajectory counts once, however often it arrives; each
trajectory that leaves without being trained on is reported by an event; memory use is bounded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rollart_flow.control.buffer.pending import PendingGroup, PendingGroups, drop_event
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
"""Callback, called once per complete group with the ids of its members. Returns the name of the
filter that refuses the group, or None. A refused group is evicted, and the scheduler admits
another group: dynamic sampling (DAPO; ROLL Flash section 5.1.1)."""


class SampleBuffer:
    """Policy of the buffer; its owner writes the tables.

    Args:
        bound: bound on the age of trajectories.
        group_size: trajectories of one task that are trained together.
        emit: receives one event per evicted or dropped trajectory.
        selection: selects the complete groups of a batch.
        judge: refuses complete groups; None refuses none.
        memory: number of removed trajectories and groups whose ids are kept for late arrivals.
        cursor: start cursor of `changes`, above all cursors of a buffer that this one replaces.
        left: called with the id of each trajectory that is not pending, or not any more.
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
        left: Callable[[str], object] = lambda _: None,
    ) -> None:
        if group_size < 1:
            raise SettingsError(f"group_size is {group_size}, but must be at least 1")
        self._bound = bound
        self._group_size = group_size
        self._emit = emit
        self._select = selection
        self._judge = judge
        self._pending = PendingGroups(group_size, memory, left)
        self._batches: BoundedDict[int, Batch] = BoundedDict(_KEPT_BATCHES)
        self._last_step = 0
        self._served = 0
        """Newest policy version of all batch requests."""
        self._newest = 0
        """Newest version from which ages are counted, of all batch requests."""
        self._changes: ReplayableQueue[Change] = ReplayableQueue("changes", start=cursor)
        self._complete = Signal()

    def __len__(self) -> int:
        """Number of pending trajectories."""
        return len(self._pending)

    def knows(self, trajectory_id: str) -> bool:
        """Whether this trajectory arrived before, so that its row must not be written again."""
        return self._pending.knows(trajectory_id)

    def put(self, sample: Sample, refused: Reason | None = None, by: str | None = None) -> bool:
        """Add a committed trajectory of the training split; return False if it was known.

        An untrainable trajectory is only reported as a change. A trajectory whose group is already
        complete, trained on or removed is dropped with the reason.

        Args:
            sample: the trajectory.
            refused: reason for dropping the trajectory at once, as by a filter. The trajectory
                never counts as a member, so that its group does not become complete meanwhile.
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
        """Drop one pending trajectory, as a filter does; return False if it is not pending.

        The scheduler replaces the missing member of its group.
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
        """Evict a group without training on it; return False if no member is pending.

        Members that arrive later are dropped. `by` is the name of the filter that refused the
        group.
        """
        samples = self._pending.close(group_id, Reason.GROUP_EVICTED)
        for sample in samples:
            self._emit(drop_event(EventKind.EVICT, sample, reason, version, by))
        if samples:
            self._changes.publish(Change(evicted=(group_id, reason)))
        return bool(samples)

    def finish(self) -> None:
        """Report the pending trajectories as dropped: the run has finished without them."""
        for group in self._pending.groups:
            for sample in group.in_order:
                self._emit(drop_event(EventKind.DROP, sample, Reason.RUN_STOPPED))

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Evict groups that violate the bound, wait for enough complete groups, form the batch.

        Args:
            step: training step; a repeated call returns the same batch.
            version: policy version that the engines serve. The newest version of all calls
                counts, since an earlier caller may have died.
            size: number of trajectories, a multiple of the group size.

        Raises:
            SettingsError: the size is not such a multiple.
            RunFailedError: the batch of this step was formed too long ago to be remembered.
        """
        if size < 1 or size % self._group_size:
            raise SettingsError(
                f"batch_size is {size}, but must be a multiple of group_size {self._group_size}"
            )
        self._served = max(self._served, version)
        newest = self._bound.reference(self._served, step - 1)
        if newest > self._newest:
            self._newest = newest
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
        needed = size // self._group_size
        if self._pending.complete < needed:
            return None
        chosen = self._select(self._pending.ready(), needed)
        if chosen is None:
            return None
        batch = self._consume(step, self._served, [group.group_id for group in chosen])
        self._batches.add(step, batch)
        self._last_step = step
        return batch

    def _evict_stale(self, groups: Iterable[PendingGroup]) -> None:
        """Evict the groups that no batch may hold since the newest request."""
        stale = [g.group_id for g in groups if self._bound.is_stale(self._newest, g.start)]
        for group_id in stale:
            self.evict(group_id, Reason.STALENESS_BOUND, self._served)

    @property
    def newest_batch(self) -> int:
        """Step of the newest batch that was formed, 0 if there is none."""
        return self._last_step

    async def formed(self, step: int) -> Batch | None:
        """Return the batch of a step if it was formed here, or None."""
        return self._batches.get(step)

    def adopt(self, batch: Batch) -> None:
        """Take over a batch that a lost buffer formed, unless it is known."""
        if batch.step > self._last_step:
            self._remove(dict.fromkeys(batch.group_ids))
            self._batches.add(batch.step, batch)
            self._last_step = batch.step

    def _remove(self, group_ids: Iterable[str]) -> list[Sample]:
        """Remove the groups of a batch, and return their members."""
        samples: list[Sample] = []
        for group_id in group_ids:
            samples += self._pending.close(group_id, Reason.GROUP_COMPLETE)
            self._changes.publish(Change(consumed=group_id))
        return samples

    def _consume(self, step: int, version: int, group_ids: list[str]) -> Batch:
        samples = self._remove(group_ids)
        return Batch(
            step=step,
            policy_version=version,
            trained_version=step - 1,
            trajectory_ids=tuple(sample.trajectory_id for sample in samples),
            group_ids=tuple(sample.group_id for sample in samples),
            staleness=tuple(version - start_version(s) for s in samples),
        )

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Wait for changes past the cursor, which is acknowledged.

        Returns:
            (new cursor, changes).
        """
        return await self._changes.read(after)

    @property
    def cursor(self) -> int:
        """Current cursor of `changes`.

        A restarted scheduler takes the cursor before it reads the tables, so that it misses no
        change.
        """
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
        """Restore an empty buffer from the tables.

        Args:
            samples: committed trajectories that were neither trained on, nor dropped, nor evicted,
                in the order of their commits.
            batches: formed batches, including at least the newest one.
            known: other trajectory ids that are committed, the oldest first.
            closed: groups that left, with the reason for dropping late members.
            changes: changes that a scheduler which outlived the buffer may not have read.
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

"""Lifecycle of a group: retries, completion, redundant attempts, staleness and abandonment.

Two rules apply the staleness bound (ROLLART section 6.2). A group is as old as its oldest committed
member and is dropped whole when that member is too old, exactly as the buffer evicts it. An attempt
in flight that is too old is aborted and replaced; if all attempts and members that the group could
still have are such attempts, the group is dropped. The scheduler and the buffer thus apply the same
rule to the same records and cannot disagree.
"""

from collections.abc import Collection

from rollart_flow.control.ids import start_version
from rollart_flow.control.protocols import Cancellation, Clearance, Emit, Order
from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.control.scheduler import group_events
from rollart_flow.control.scheduler.group_registry import GroupRegistry, OrderFeeds
from rollart_flow.control.scheduler.groups import Attempt, Group, GroupRecord, GroupState
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.types import Event, EventKind, Outcome, Reason, Sample, Task

_GONE_IN_BUFFER = frozenset({Reason.GROUP_EVICTED, Reason.GROUP_COMPLETE})
"""Reasons for refusing a member of a group that has left the buffer or is already complete."""
_GIVEN_UP = 0.05
"""Largest share of a batch's groups that a batch does not wait for, since only attempts in place of
failed ones are missing: each of them may take as long as a whole step."""


class GroupLifecycle:
    """Applies the settings and the staleness bound to the groups of a registry."""

    def __init__(
        self,
        registry: GroupRegistry,
        settings: RolloutSettings,
        bound: Bound,
        emit: Emit,
        feeds: OrderFeeds,
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._bound = bound
        self._emit = emit
        self._feeds = feeds
        self.version = 0
        """Policy version that the engines serve."""
        self._stopped = False

    def stop(self) -> None:
        """Cancel the attempts in flight and launch no more."""
        self._stopped = True
        for attempt in list(self._registry.attempts.values()):
            if attempt.cancellation is None:
                self.cancel(attempt, Outcome.CANCELLED, Reason.RUN_STOPPED)

    def open(self, group_id: str, task: Task, *, ahead: bool) -> None:
        """Open a group and launch its attempts.

        Args:
            group_id: name of the group.
            task: its task.
            ahead: whether its environments are only reset, until `admit`.
        """
        group = self._registry.open(group_id, task)
        if ahead:
            self._emit(group_events.prepared(group))
        else:
            self._admit(group)
        self.refill(group)

    def _admit(self, group: Group) -> None:
        self._registry.admit(group)
        self._emit(group_events.admitted(group, self.version))

    def admit(self, group: Group) -> None:
        """Give a group that was opened ahead a credit, so that its attempts may generate."""
        self._admit(group)
        for attempt in group.active:
            self._send(attempt, Clearance(attempt.trajectory_id))

    def update(self, version: int) -> None:
        """Apply the bound under a newer version; versions that are not newer are ignored."""
        if version <= self.version:
            return
        self.version = version
        for group in list(self._registry.groups.values()):
            self.enforce(group)

    def committed(self, sample: Sample) -> bool:
        """Record an ended attempt with its committed trajectory; False if already recorded."""
        group = self._registry.groups.get(sample.group_id)
        if group is None or sample.trajectory_id in group.ended:
            return False
        group.ended.add(sample.trajectory_id)
        group.used.add(sample.attempt)
        if (attempt := self._registry.attempts.get(sample.trajectory_id)) is not None:
            self._end(attempt)
            self._report_abort(attempt, sample)
        if group.state is GroupState.OPEN and sample.trainable:
            group.members[sample.trajectory_id] = start_version(sample)
            if len(group.members) == self._settings.group_size:
                self.complete(group)
        self.enforce(group, sample)
        return True

    def _end(self, attempt: Attempt) -> None:
        """Remove an ended attempt, and cancel any second run of the same attempt."""
        if attempt.again or len(attempt.workers) > 1:
            done = Cancellation(attempt.trajectory_id, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
            self._send(attempt, done)
        self._registry.end(attempt)

    def _send(self, attempt: Attempt, order: Order) -> None:
        for worker in attempt.workers:
            self._feeds.publish(worker, order)

    def restore(self, group: Group, record: GroupRecord) -> None:
        """Count a recorded group's trajectories and launch the attempts that it lacks."""
        group.restored = True
        if record.admitted:
            self._registry.admit(group)
        for sample in record.samples:
            group.ended.add(sample.trajectory_id)
            group.used.add(sample.attempt)
            if sample.trainable and sample.trajectory_id not in record.dropped:
                group.members[sample.trajectory_id] = start_version(sample)
        if len(group.members) >= self._settings.group_size:
            self.complete(group)
        self.enforce(group)

    def dropped(self, trajectory_id: str, reason: Reason) -> bool:
        """Record that one committed trajectory left the buffer without its group.

        Returns:
            False for an unknown trajectory, which has no effect. A trajectory is unknown after
            the first call.
        """
        group = self._registry.group_of_member(trajectory_id)
        if group is None:
            return False
        del group.members[trajectory_id]
        if len(group.members) >= self._settings.group_size:
            return True  # a late member, which only a restart counted
        if reason in _GONE_IN_BUFFER:
            self.close(group, Outcome.STALE, Reason.GROUP_EVICTED)
        elif group.state is GroupState.COMPLETE:
            self._registry.reopen(group)
        self.refill(group)
        return True

    def complete(self, group: Group) -> None:
        """Mark a group as complete and cancel its redundant attempts."""
        if group.state is GroupState.OPEN:
            group.state = GroupState.COMPLETE
            self._cancel_all(group, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)

    def trained(self, group: Group, trajectory_ids: Collection[str]) -> None:
        """Cancel a batched group's attempts outside the batch and return its credit.

        The batch may become known before the commits of its members.
        """
        for attempt in group.active:
            if attempt.trajectory_id not in trajectory_ids:
                self.cancel(attempt, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
        self._registry.close(group)

    def close(self, group: Group, outcome: Outcome, reason: Reason) -> bool:
        """Cancel a group's attempts in flight and return its credit.

        Returns:
            False if the group was already closed.
        """
        if group.state is GroupState.CLOSED:
            return False
        self._cancel_all(group, outcome, reason)
        self._registry.close(group)
        return True

    def quarantine(self, task_id: str, why: str | None) -> None:
        """Open no more groups of a task and abandon those that lack members.

        A repeated call has no effect. Without a reason, there is no event either.
        """
        if self._stopped or task_id in self._registry.quarantined:
            return
        self._registry.quarantined.add(task_id)
        if why is not None:
            reason, detail = Reason.SANDBOX_FAILED, {"error": why}
            self._emit(Event(EventKind.QUARANTINE, task_id, reason=reason, detail=detail))
        for group in list(self._registry.groups.values()):
            if group.task.task_id == task_id and group.state is GroupState.OPEN:
                self._abandon(group, Reason.TASK_QUARANTINED)

    def _abandon(self, group: Group, reason: Reason) -> None:
        """Give up a group that cannot become complete, or must not."""
        self._emit(group_events.abandoned(group, reason, self.version))
        self.close(group, Outcome.REDUNDANT, reason)

    def enforce(self, group: Group, replaced: Sample | None = None) -> None:
        """Apply the bound to one group under the current version, then launch missing attempts."""
        if group.state is GroupState.CLOSED:
            return
        starts = group.members.values()
        if starts and self._is_stale(min(starts)):  # a group is as old as its oldest member
            self._drop_stale(group)
            return
        stale = group.stale_attempts(self._is_stale)
        if stale and group.state is GroupState.OPEN and len(stale) == group.reach:
            self._drop_stale(group)
            return
        for attempt in stale:
            self.cancel(attempt, Outcome.STALE, Reason.STALENESS_BOUND)
        self.refill(group, replaced)

    def outlived(self, version: int) -> bool:
        """Whether a batch should wait for groups that would be too old under a version.

        It waits for attempts that would be too old, but not for those of `extra_groups` groups,
        which others stand in for. Where only members would, since a failed attempt was replaced
        late, it waits if that are more groups than `_GIVEN_UP` allows.
        """

        def stale(start: int) -> bool:
            return self._bound.is_stale(version, start)

        slow, late = 0, 0
        for group in self._registry.groups.values():
            if group.state is not GroupState.OPEN or not group.active:
                continue
            if group.stale_attempts(stale):
                slow += 1
            elif any(map(stale, group.members.values())):
                late += 1
        given_up = _GIVEN_UP * self._settings.groups_per_batch
        return slow > self._settings.extra_groups or late > given_up

    def _is_stale(self, start: int) -> bool:
        return self._bound.is_stale(self.version, start)

    def _drop_stale(self, group: Group) -> None:
        for attempt in group.stale_attempts(self._is_stale):
            self.cancel(attempt, Outcome.STALE, Reason.STALENESS_BOUND)
        if group.state is GroupState.OPEN:
            self._emit(group_events.abandoned(group, Reason.STALENESS_BOUND, self.version))
        self.close(group, Outcome.STALE, Reason.GROUP_EVICTED)

    def refill(self, group: Group, replaced: Sample | None = None) -> None:
        """Launch an open group's missing attempts; abandon a group that cannot become complete."""
        settings = self._settings
        if self._stopped:
            return
        while group.state is GroupState.OPEN and group.reach < settings.launched:
            if len(group.used) >= settings.attempts_limit:
                if group.reach < settings.group_size:
                    self._abandon(group, Reason.GROUP_ABANDONED)
                return
            attempt = self._registry.launch(group)
            if replaced is not None:
                self._emit(group_events.retried(attempt, replaced))

    def _cancel_all(self, group: Group, outcome: Outcome, reason: Reason) -> None:
        for attempt in group.active:
            self.cancel(attempt, outcome, reason)

    def cancel(self, attempt: Attempt, outcome: Outcome, reason: Reason) -> None:
        """Stop an attempt: a queued one is forgotten, any other is cancelled."""
        if attempt.queued:
            self._registry.unlaunch(attempt)
            return
        if attempt.cancellation is None:
            attempt.cancellation = Cancellation(attempt.trajectory_id, outcome, reason)
            self._send(attempt, attempt.cancellation)

    def _report_abort(self, attempt: Attempt, sample: Sample) -> None:
        """Emit the event of a cancelled attempt, unless the attempt had ended before."""
        cancellation = attempt.cancellation
        if cancellation is not None and sample.outcome is cancellation.outcome:
            self._emit(group_events.aborted(sample, cancellation.reason, self.version))

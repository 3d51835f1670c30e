"""The scheduler's records: groups, attempts, unassigned attempts, and feeds of orders.

The records make no decisions. The invariant: an attempt is in its group and in the index, or in
neither; a group that holds a credit is not closed, and a group that was opened ahead holds none.
"""

import heapq
from collections.abc import Iterable

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.control.protocols import Order, RunningAttempt
from rollart_flow.control.scheduler.groups import Attempt, Group, GroupState
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import UnknownClientError
from rollart_flow.types import Assignment, Task


class GroupRegistry:
    """Registry of groups and attempts by id."""

    def __init__(self, settings: RolloutSettings) -> None:
        self._settings = settings
        self._opened = 0
        self._queue: list[tuple[int, int, str]] = []
        self._lacking: list[tuple[int, str]] = []
        """Heap of groups that lack members, by position; other entries are removed lazily."""
        self.groups: dict[str, Group] = {}
        self.attempts: dict[str, Attempt] = {}
        self.credits: set[str] = set()
        """Groups that hold a credit."""
        self.ahead: dict[str, Group] = {}
        """Groups that are open without a credit, the oldest first."""
        self.quarantined: set[str] = set()
        """Ids of tasks that are attempted no more."""

    @property
    def next_position(self) -> int:
        """Position of the next group."""
        return self._opened

    @property
    def oldest_position(self) -> int:
        """Position of the oldest group that lacks members, or `next_position` if none does."""
        while self._lacking:
            position, group_id = self._lacking[0]
            group = self.groups.get(group_id)
            if group is not None and group.state is GroupState.OPEN:
                return position
            heapq.heappop(self._lacking)
        return self._opened

    def count(self, state: GroupState) -> int:
        """Return the number of groups in a state."""
        return sum(group.state is state for group in self.groups.values())

    def open(self, group_id: str, task: Task) -> Group:
        """Add a group, which holds no credit yet."""
        position = group_cursor(group_id)
        group = self.groups[group_id] = Group(group_id, task, position)
        self.ahead[group_id] = group
        heapq.heappush(self._lacking, (position, group_id))
        self._opened = max(self._opened, position + 1)
        return group

    def admit(self, group: Group) -> None:
        """Give a group a credit."""
        del self.ahead[group.group_id]
        self.credits.add(group.group_id)
        if group.restored:
            for attempt in group.attempts.values():
                self._enqueue(attempt, group.position)

    def reopen(self, group: Group) -> None:
        """Mark a complete group that has lost a member as open."""
        group.state = GroupState.OPEN
        heapq.heappush(self._lacking, (group.position, group.group_id))

    def resume(self, position: int) -> None:
        """Skip the positions before this one, which an earlier registry assigned."""
        self._opened = max(self._opened, position)

    def launch(self, group: Group) -> Attempt:
        """Queue one more attempt of a group."""
        attempt = self._add(group, group.next_index())
        attempt.again = group.restored
        # What an earlier registry has assigned may be ready and keep its place. A second run of it
        # would take another place, which may be the last one that admitted attempts could get.
        if not (group.restored and group.group_id in self.ahead):
            self._enqueue(attempt, group.position)
        return attempt

    def _add(self, group: Group, index: int) -> Attempt:
        assignment = self._settings.assignment(group.group_id, group.task, index)
        attempt = Attempt(assignment)
        group.used.add(index)
        group.attempts[assignment.trajectory_id] = attempt
        self.attempts[assignment.trajectory_id] = attempt
        return attempt

    def adopt(self, running: RunningAttempt) -> None:
        """Add an attempt of an open group that an earlier registry launched."""
        group = self.groups.get(running.group_id)
        known = running.trajectory_id in self.attempts
        if group is None or known or group.state is not GroupState.OPEN:
            return
        if running.attempt not in group.used:
            self._add(group, running.attempt).again = True

    def _enqueue(self, attempt: Attempt, position: int) -> None:
        entry = (position, attempt.assignment.attempt, attempt.trajectory_id)
        heapq.heappush(self._queue, entry)

    def take(self, source: str) -> Attempt | None:
        """Assign the oldest group's queued attempt to a source; None if the queue is empty."""
        while self._queue:
            _, _, trajectory_id = heapq.heappop(self._queue)
            attempt = self.attempts.get(trajectory_id)
            if attempt is not None and attempt.queued:
                attempt.source = source
                return attempt
        return None

    def assigned(self, source: str, trajectory_ids: Iterable[str]) -> tuple[Assignment, ...]:
        """Return what has not ended of attempts that an earlier registry assigned to a source."""
        attempts = [self.attempts[each] for each in trajectory_ids if each in self.attempts]
        for attempt in attempts:
            if attempt.queued:
                attempt.source = source
        return tuple(attempt.assignment for attempt in attempts)

    def lose_worker(self, worker: str) -> int:
        """Detach all attempts from a rollout worker and return their number."""
        left = [attempt for attempt in self.attempts.values() if worker in attempt.workers]
        for attempt in left:
            del attempt.workers[worker]
            attempt.again = True
            if not attempt.workers:
                attempt.version = None
        return len(left)

    def unlaunch(self, attempt: Attempt) -> None:
        """Forget an unassigned attempt; its index may be used again."""
        self.groups[attempt.assignment.group_id].used.discard(attempt.assignment.attempt)
        self.end(attempt)

    def end(self, attempt: Attempt) -> None:
        """Remove an ended attempt. A closed group is removed with its last attempt."""
        group = self.groups[attempt.assignment.group_id]
        del self.attempts[attempt.trajectory_id]
        del group.attempts[attempt.trajectory_id]
        self._tidy(group)

    def close(self, group: Group) -> None:
        """Close a group and free its credit."""
        group.state = GroupState.CLOSED
        self.ahead.pop(group.group_id, None)
        self.credits.discard(group.group_id)
        self._tidy(group)

    def _tidy(self, group: Group) -> None:
        if group.state is GroupState.CLOSED and not group.attempts:
            self.groups.pop(group.group_id, None)

    def group_of_member(self, trajectory_id: str) -> Group | None:
        """Return the group that counts a committed trajectory as its member, or None."""
        return next((g for g in self.groups.values() if trajectory_id in g.members), None)


class OrderFeeds:
    """One feed of orders per rollout worker, whose cursors only ever grow.

    Args:
        start: cursor above all cursors of the scheduler that this one replaces.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._feeds: dict[str, ReplayableQueue[Order]] = {}
        self._starts: dict[str, int] = {}

    def _feed(self, worker: str) -> ReplayableQueue[Order]:
        if worker not in self._feeds:
            self._feeds[worker] = ReplayableQueue(f"orders({worker})", start=self._start)
            self._starts[worker] = self._start
        return self._feeds[worker]

    def publish(self, worker: str, order: Order) -> None:
        """Send an order to a rollout worker."""
        self._feed(worker).publish(order)

    def open(self, worker: str) -> int:
        """Open the feed of a rollout worker; return the cursor before its unread items."""
        feed = self._feed(worker)
        return feed.cursor - len(feed)

    async def read(self, worker: str, after: int) -> tuple[int, tuple[Order, ...]]:
        """Wait for a rollout worker's orders past the cursor.

        Raises:
            UnknownClientError: the cursor is one of an earlier feed or scheduler.
        """
        feed = self._feed(worker)
        if after < self._starts[worker]:
            raise UnknownClientError(f"rollout worker {worker} has to report its attempts")
        return await feed.read(after)

    def remove(self, worker: str) -> None:
        """Discard the feed of a lost rollout worker."""
        if (feed := self._feeds.pop(worker, None)) is not None:
            del self._starts[worker]
            self._start = max(self._start, feed.cursor) + 1
            feed.close()

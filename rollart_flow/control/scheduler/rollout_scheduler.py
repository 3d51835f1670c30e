"""RolloutScheduler: which attempts run, when, and which are not wanted any more.

ROLLART section 6.2 (asynchronous bound) and 6.3 (redundant rollouts), ROLL Flash sections 4.3 and
5.2.2. The invariants: the groups that hold a credit never exceed the limit; every attempt that a
source has taken ends in exactly one committed trajectory; whatever in flight can no longer meet
the bound is aborted at the update that makes it so.
"""

import asyncio
from collections.abc import Iterable, Iterator

from rollart_flow.control.ids import group_name
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import Cancellation, Change, Emit
from rollart_flow.control.schedule.selection import AdmissionState, Admit, by_credits
from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.control.scheduler.admission_queue import AdmissionQueue
from rollart_flow.control.scheduler.cancellation_feeds import CancellationFeeds
from rollart_flow.control.scheduler.circuit_breaker import CircuitBreaker
from rollart_flow.control.scheduler.group_registry import GroupRegistry
from rollart_flow.control.scheduler.groups import GroupRecord, GroupState
from rollart_flow.control.scheduler.lifecycle import GroupLifecycle
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.control.scheduler.task_source import TaskSource
from rollart_flow.errors import RunFailedError
from rollart_flow.types import Assignment, Batch, Event, EventKind, Outcome, Reason, Task


class RolloutScheduler:
    """Implements the ports `Admission` (for rollout) and `Scheduling` (for the AsyncController).

    What the buffer did is fed to `apply`, in the order of its changes.

    Args:
        tasks: (task, cursor) pairs with growing cursors; each admission records its cursor.
        settings: sizes and limits.
        bound: what is too old, and how many trajectories may be in flight or buffered.
        emit: where admissions, aborts, retries and abandoned groups are reported.
        admission: whether one more group may be opened.
        version: policy version that the engines serve.
        incarnation: counts the schedulers of a run; a restarted one gets a higher number.
    """

    def __init__(
        self,
        tasks: Iterator[tuple[Task, int]],
        settings: RolloutSettings,
        bound: Bound,
        emit: Emit,
        *,
        admission: Admit = by_credits,
        version: int = 0,
        incarnation: int = 0,
    ) -> None:
        self._tasks = TaskSource(tasks)
        self._settings = settings
        self._emit = emit
        self._admission = admission
        self._book = GroupRegistry(settings)
        self._desk = AdmissionQueue(settings.history)
        self._hosts = CancellationFeeds(start=incarnation << 32)
        self._lifecycle = GroupLifecycle(self._book, settings, bound, emit, self._hosts)
        self._lifecycle.version = version
        self._breaker = CircuitBreaker(settings.failures_limit, settings.refusals_limit)
        capacity = bound.capacity(settings.batch_size) // settings.group_size
        self._limit = capacity + settings.extra_groups
        self._stopped = False
        self._failure: RunFailedError | None = None
        self._failed = Signal()
        self._applied = Signal()

    @property
    def version(self) -> int:
        """Policy version that the engines serve, as far as the scheduler was told."""
        return self._lifecycle.version

    @property
    def credits(self) -> frozenset[str]:
        """Groups that hold a credit."""
        return frozenset(self._book.credits)

    @property
    def limit(self) -> int:
        """Most groups that may hold a credit."""
        return self._limit

    @property
    def in_flight(self) -> int:
        """Attempts that were launched and have not ended."""
        return len(self._book.attempts)

    def batch_ready(self) -> bool:
        """See `control.protocols.Scheduling`."""
        needed = self._settings.batch_size // self._settings.group_size
        return self._book.count(GroupState.COMPLETE) >= needed

    @property
    def failure(self) -> RunFailedError | None:
        """Why the run cannot go on; None while it can."""
        return self._failure

    async def failed(self) -> RunFailedError:
        """Wait until the run cannot go on; why."""
        while self._failure is None:
            await self._failed.wait()
        return self._failure

    async def admit(self, source: str, index: int) -> Assignment | None:
        """The index-th attempt for this source; waits for credit. None: the run ends."""
        answered = self._desk.answered(source, index)
        if answered is not None or self._stopped:
            return answered
        answer = self._desk.ask(source, index)
        self._pump()
        with waiting(f"admit({source}, {index})"):
            return await asyncio.shield(answer)

    async def permit(self, trajectory_id: str, host: str) -> Cancellation | None:
        """Whether an attempt may start on this host; None: yes.

        Who runs an attempt asks again after the scheduler was restarted, so that it is known.
        What has ended already, or belongs to a group that has left, is not wanted again.
        """
        attempt = self._book.attempts.get(trajectory_id)
        if attempt is None and self._stopped:
            return Cancellation(trajectory_id, Outcome.CANCELLED, Reason.RUN_STOPPED)
        if attempt is None:
            return Cancellation(trajectory_id, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
        if host not in attempt.hosts:
            attempt.hosts[host] = None
            attempt.version = None
        return attempt.cancellation

    async def started(self, trajectory_id: str, version: int) -> None:
        """The first token was generated, under this policy version."""
        attempt = self._book.attempts.get(trajectory_id)
        if attempt is not None:
            attempt.version = max(version, attempt.version or 0)
            self._lifecycle.enforce(self._book.groups[attempt.assignment.group_id])
            self._pump()

    async def cancellations(self, host: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """Wait for cancellations for this host past the cursor; (new cursor, cancellations)."""
        return await self._hosts.read(host, after)

    def host_lost(self, host: str) -> None:
        """A host died. Its attempts keep their ids and wait for a host that runs them again."""
        detail = {"attempts": self._book.leave_host(host)}
        self._hosts.remove(host)
        self._emit(Event(EventKind.CRASH, host, reason=Reason.WORKER_LOST, detail=detail))

    def batch_taken(self, batch: Batch) -> None:
        """What is admitted from now on starts under the version that follows this batch.

        Its credits are held back until then: a group that replaces it and starts before the
        engines are suspended would start one version too early (for alpha 0, in vain).
        """
        for group_id in dict.fromkeys(batch.group_ids):
            if (group := self._book.groups.get(group_id)) is not None:
                self._lifecycle.trained(group, batch.trajectory_ids)
        self._pump()

    async def settled(self, version: int) -> None:
        """Wait until nothing in flight would be too old under this version, or the run stops."""
        while not self._stopped and self._lifecycle.outlived(version):
            with waiting(f"settled({version})"):
                await self._applied.wait()

    def version_updated(self, version: int) -> None:
        """The engines hold this version: abort and drop what can no longer meet the bound."""
        self._lifecycle.update(version)
        self._pump()

    def apply(self, change: Change) -> None:
        """Take note of one change of the buffer. Once too often does no harm."""
        if change.committed is not None and self._lifecycle.committed(change.committed):
            self._judge(self._breaker.record(change.committed))
        if change.dropped is not None and self._lifecycle.dropped(*change.dropped):
            self._judge(self._breaker.dropped(*change.dropped))
        if change.evicted is not None:
            self._evicted(*change.evicted)
        if change.consumed is not None:
            self._breaker.trained()
            if change.consumed in self._book.groups:
                self._lifecycle.complete(self._book.groups[change.consumed])
        self._pump()
        self._applied.notify()

    def _judge(self, verdict: str | None) -> None:
        if verdict is not None:
            self.fail(verdict)

    def _evicted(self, group_id: str, reason: Reason) -> None:
        group = self._book.groups.get(group_id)
        if group is not None and self._lifecycle.close(group, Outcome.STALE, Reason.GROUP_EVICTED):
            self._judge(self._breaker.evicted(group_id, reason, self._settings.group_size))

    def stop(self) -> None:
        """No more attempts are needed: admit none, cancel those in flight."""
        if self._stopped:
            return
        self._stopped = True
        self._desk.dismiss()
        self._lifecycle.stop()
        self._applied.notify()

    def fail(self, message: str) -> None:
        """Stop because the run cannot go on. The first reason counts."""
        if self._stopped:
            return
        self._failure = RunFailedError(message)
        self._emit(Event(EventKind.RUN, subject="failed", detail={"error": message}))
        self.stop()
        self._failed.notify()

    def restore(self, records: Iterable[GroupRecord], next_cursor: int = 0) -> None:
        """Continue from the tables: groups that were admitted and have not left, the oldest first.

        Attempts that left no trajectory are launched again under the same ids.

        Args:
            records: the groups.
            next_cursor: above those of all groups that were ever admitted.
        """
        self._book.resume(next_cursor)
        for record in records:
            group = self._book.open(record.group_id, record.task)
            self._lifecycle.restore(group, record)
        self._pump()

    def _pump(self) -> None:
        """Give attempts to those who wait, and open groups for them while credits last."""
        while not self._stopped and (source := self._desk.next_source) is not None:
            attempt = self._book.take(source)
            if attempt is not None:
                self._desk.answer(attempt.assignment)
            elif not self._open_group():
                return

    def _open_group(self) -> bool:
        state = AdmissionState(
            held=len(self._book.credits),
            limit=self._limit,
            next_position=self._book.next_position,
            oldest_position=self._book.oldest_position,
        )
        if not self._admission(state):
            return False
        try:
            taken = self._tasks.take()
        except RunFailedError as error:
            self.fail(error.message)
            return False
        if taken is None:
            self._fail_if_starved()
            return False
        task, cursor = taken
        self._lifecycle.open(group_name(cursor), task, cursor)
        return True

    def _fail_if_starved(self) -> None:
        needed = self._settings.batch_size // self._settings.group_size
        if len(self._book.credits) < needed:
            self.fail(
                f"the tasks ended after {self._book.next_position} groups, with "
                f"{len(self._book.credits)} left for a batch of {needed}; "
                "give more tasks or train fewer steps"
            )

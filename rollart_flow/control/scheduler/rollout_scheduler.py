"""RolloutScheduler: decides which attempts run, when they start, and which are cancelled.

ROLLART section 6.2 (asynchronous bound) and 6.3 (redundant rollouts), ROLL Flash sections 4.3 and
5.2.2. The invariants: the groups that hold a credit never exceed the limit; every attempt that a
source has taken ends in exactly one committed trajectory; an attempt in flight that can no longer
meet the bound is aborted at the version update that makes it too old.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import (
    Cancellation,
    Change,
    Clearance,
    Emit,
    Order,
    Permission,
    ResetOnly,
    RunningAttempt,
)
from rollart_flow.control.schedule.selection import Admit, by_credits
from rollart_flow.control.schedule.staleness import Bound
from rollart_flow.control.scheduler.admission_queue import AdmissionQueue
from rollart_flow.control.scheduler.circuit_breaker import CircuitBreaker
from rollart_flow.control.scheduler.group_opener import GroupOpener
from rollart_flow.control.scheduler.group_registry import GroupRegistry, OrderFeeds
from rollart_flow.control.scheduler.groups import GroupRecord, GroupState
from rollart_flow.control.scheduler.lifecycle import GroupLifecycle
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import RunFailedError, UnknownClientError
from rollart_flow.types import Assignment, Batch, Event, EventKind, Outcome, Reason, Task


class RolloutScheduler:
    """Implements the port `Admission` for rollout, and serves the AsyncController.

    The changes of the buffer are passed to `apply`, in their order.

    Args:
        tasks: (task, cursor) pairs with growing cursors; each admission records its cursor. None
            stands for a task to come, of which `tasks_arrived` tells.
        settings: sizes and limits.
        bound: largest staleness, and the number of trajectories in flight or buffered.
        emit: receives events for admissions, aborts, retries and abandoned groups.
        admission: decides whether one more group may be admitted.
        ahead: most attempts whose environments are reset before their group is admitted.
        version: policy version that the engines serve.
        incarnation: counts the schedulers of a run; a restarted one gets a higher number.
    """

    def __init__(
        self,
        tasks: Iterator[tuple[Task, int] | None],
        settings: RolloutSettings,
        bound: Bound,
        emit: Emit,
        *,
        admission: Admit = by_credits,
        ahead: int = 0,
        version: int = 0,
        incarnation: int = 0,
    ) -> None:
        self._settings = settings
        self._restarted = incarnation > 0
        self._emit = emit
        self._registry = GroupRegistry(settings)
        self._admissions = AdmissionQueue(settings.history)
        self._feeds = OrderFeeds(start=incarnation << 32)
        self._lifecycle = GroupLifecycle(self._registry, settings, bound, emit, self._feeds)
        self._lifecycle.version = version
        self._breaker = CircuitBreaker(settings.failures_limit, settings.refusals_limit)
        capacity = bound.capacity(settings.batch_size) // settings.group_size
        self.limit = capacity + settings.extra_groups
        """Largest number of groups that may hold a credit."""
        self._opener = GroupOpener(
            tasks,
            admission,
            self._registry,
            self._lifecycle,
            settings,
            limit=self.limit,
            ahead=ahead,
        )
        self._stopped = False
        self._failure: RunFailedError | None = None
        self._failed = Signal()
        self._applied = Signal()

    @property
    def version(self) -> int:
        """Policy version that the engines serve, as last reported to the scheduler."""
        return self._lifecycle.version

    @property
    def credits(self) -> frozenset[str]:
        """Groups that hold a credit."""
        return frozenset(self._registry.credits)

    @property
    def ahead(self) -> frozenset[str]:
        """Groups that were opened ahead of their admission."""
        return frozenset(self._registry.ahead)

    @property
    def in_flight(self) -> int:
        """Attempts that were launched and have not ended."""
        return len(self._registry.attempts)

    def batch_ready(self) -> bool:
        """Whether the buffer holds a whole batch, as far as the scheduler knows."""
        return self._registry.count(GroupState.COMPLETE) >= self._settings.groups_per_batch

    @property
    def failure(self) -> RunFailedError | None:
        """Cause of the run's failure; None while the run can continue."""
        return self._failure

    async def failed(self) -> RunFailedError:
        """Wait until the run cannot continue and return the cause."""
        while self._failure is None:
            await self._failed.wait()
        return self._failure

    async def admit(self, source: str, index: int, most: int = 1) -> tuple[Assignment, ...]:
        """Wait for credit and return the index-th block of a source; empty if the run ends."""
        answered = self._admissions.answered(source, index)
        if answered is not None or self._stopped:
            return answered or ()
        if self._restarted and index and not self._admissions.knows(source):
            raise UnknownClientError(f"source {source!r} has to report its attempts")
        answer = self._admissions.ask(source, index, most)
        self._pump()
        with waiting(f"admit({source}, {index})"):
            return await asyncio.shield(answer)

    async def adopt(self, source: str, blocks: Sequence[Sequence[str]]) -> None:
        """Assign attempts, whose ids a source has received of an earlier scheduler, to it."""
        self._admissions.know(source, [self._registry.assigned(source, each) for each in blocks])

    async def permit(self, trajectory_id: str, worker: str) -> Permission:
        """Return whether an attempt may start; not if it has ended, or its group has left."""
        attempt = self._registry.attempts.get(trajectory_id)
        over = Cancellation(trajectory_id, Outcome.CANCELLED, Reason.RUN_STOPPED)
        if attempt is None:
            done = Cancellation(trajectory_id, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
            return over if self._stopped else done
        if worker not in attempt.workers:
            attempt.workers[worker] = None
            attempt.version = None
        if attempt.cancellation is None and self._stopped:
            attempt.cancellation = over  # a rollout worker has reported it only now
        if attempt.cancellation is None and attempt.assignment.group_id in self._registry.ahead:
            return ResetOnly()
        return attempt.cancellation

    async def started(self, trajectory_id: str, version: int) -> None:
        """Record the policy version under which an attempt's first token was generated."""
        attempt = self._registry.attempts.get(trajectory_id)
        if attempt is not None:
            attempt.version = max(version, attempt.version or 0)
            self._lifecycle.enforce(self._registry.groups[attempt.assignment.group_id])
            self._pump()

    async def orders(self, worker: str, after: int) -> tuple[int, tuple[Order, ...]]:
        """Wait for a rollout worker's orders past the cursor; return the new cursor and them."""
        return await self._feeds.read(worker, after)

    async def announce(
        self, worker: str, running: Sequence[RunningAttempt]
    ) -> tuple[int, tuple[Order, ...]]:
        """Learn from a rollout worker which attempts it runs.

        Returns:
            (cursor for `orders`, orders to the attempts that may not go on, or need not wait).
        """
        cursor = self._feeds.open(worker)
        orders: list[Order] = []
        for each in running:
            self._registry.adopt(each)
            permission = await self.permit(each.trajectory_id, worker)
            if isinstance(permission, Cancellation):
                orders.append(permission)
            elif each.version is not None:
                await self.started(each.trajectory_id, each.version)
            elif permission is None:
                orders.append(Clearance(each.trajectory_id))
        return cursor, tuple(orders)

    def rollout_worker_lost(self, worker: str) -> None:
        """Record that a rollout worker died; another one runs its attempts again, as they were."""
        detail = {"attempts": self._registry.lose_worker(worker)}
        self._feeds.remove(worker)
        if detail["attempts"]:
            self._emit(Event(EventKind.CRASH, worker, reason=Reason.WORKER_LOST, detail=detail))

    def batch_taken(self, batch: Batch) -> None:
        """Free the credits of a batch; later groups start under the version that follows it.

        The credits are held until this call: a replacement group that started before the engines
        are suspended would start one version too early (and, for alpha 0, be too old).
        """
        for group_id in dict.fromkeys(batch.group_ids):
            if (group := self._registry.groups.get(group_id)) is not None:
                self._lifecycle.trained(group, batch.trajectory_ids)
        self._pump()

    async def settled(self, version: int) -> None:
        """Wait until no attempt would be too old under this version, or the run stops."""
        while not self._stopped and self._lifecycle.outlived(version):
            with waiting(f"settled({version})"):
                await self._applied.wait()

    def version_updated(self, version: int) -> None:
        """Abort attempts and drop groups that are too old for the engines' new version."""
        self._lifecycle.update(version)
        self._pump()

    def apply(self, change: Change) -> None:
        """Apply one change of the buffer. A repeated change has no effect."""
        if change.committed is not None and self._lifecycle.committed(change.committed):
            self._judge(self._breaker.record(change.committed))
        if change.dropped is not None and self._lifecycle.dropped(*change.dropped):
            self._judge(self._breaker.dropped(*change.dropped))
        if change.evicted is not None:
            self._evicted(*change.evicted)
        if change.consumed is not None:
            self._breaker.trained()
            if change.consumed in self._registry.groups:
                self._lifecycle.complete(self._registry.groups[change.consumed])
        self._pump()
        self._applied.notify()

    def quarantine(self, task_id: str, why: str | None) -> None:
        """Attempt a task no more; without a reason, since an earlier scheduler said so."""
        self._lifecycle.quarantine(task_id, why)
        self._pump()

    def tasks_arrived(self) -> None:
        """Admit groups: the tasks have another one, or have ended."""
        self._pump()

    def _judge(self, verdict: str | None) -> None:
        if verdict is not None:
            self.fail(verdict)

    def _evicted(self, group_id: str, reason: Reason) -> None:
        group = self._registry.groups.get(group_id)
        if group is not None and self._lifecycle.close(group, Outcome.STALE, Reason.GROUP_EVICTED):
            self._judge(self._breaker.evicted(group_id, reason, self._settings.group_size))

    def stop(self) -> None:
        """Admit no more attempts and cancel those in flight."""
        if self._stopped:
            return
        self._stopped = True
        self._admissions.dismiss()
        self._lifecycle.stop()
        self._applied.notify()

    def fail(self, message: str) -> None:
        """Stop a run that cannot continue; only the first reason is kept."""
        if self._stopped:
            return
        self._failure = RunFailedError(message)
        self._emit(Event(EventKind.RUN, subject="failed", detail={"error": message}))
        self.stop()
        self._failed.notify()

    def restore(self, records: Iterable[GroupRecord], next_cursor: int = 0) -> None:
        """Continue from the tables with the groups that were admitted and have not left.

        Attempts that left no trajectory are launched again under the same ids.

        Args:
            records: the groups, the oldest first.
            next_cursor: cursor above the cursors of all groups ever admitted.
        """
        self._registry.resume(next_cursor)
        for record in records:
            group = self._registry.open(record.group_id, record.task)
            self._lifecycle.restore(group, record)
        self._pump()

    def _pump(self) -> None:
        """Admit groups while credits last, and assign attempts to waiting sources."""
        if not self._stopped:
            self._opener.admit()
        while not self._stopped and (request := self._admissions.oldest) is not None:
            try:
                assignments = self._opener.take(request.source, request.most)
            except RunFailedError as error:
                self.fail(error.message)
                return
            if not assignments:
                return
            self._admissions.answer(assignments)

"""RolloutScheduler as a state machine beside a real SampleBuffer, with changes that lag behind."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.protocols import (
    Cancellation,
    Change,
    Clearance,
    Order,
    Permission,
    ResetOnly,
    RunningAttempt,
)
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import UnknownClientError
from rollart_flow.simulation import VirtualTimeLoop
from rollart_flow.types import Assignment, Batch, EventKind, Outcome, Reason
from tests.builders import sample
from tests.dst.environments import endless_tasks
from tests.dst.log import EventLog
from tests.pending import complete_groups

T = TypeVar("T")

GROUP_SIZE = 2
BATCH_SIZE = 4
ALPHA = 1
AHEAD = 2
"""Groups that may be opened ahead of their admission."""
SETTINGS = RolloutSettings(
    BATCH_SIZE, GROUP_SIZE, redundancy=1, extra_groups=1, max_attempts=5, breaker=10_000
)


class SchedulerMachine(RuleBasedStateMachine):
    """One source and two hosts run attempts; the buffer's changes arrive when they arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.log = EventLog()
        bound = StalenessPolicy(ALPHA)
        self.buffer = SampleBuffer(bound, GROUP_SIZE, self.log)
        self.scheduler = RolloutScheduler(
            endless_tasks(), SETTINGS, bound, self.log, ahead=AHEAD * SETTINGS.launched
        )
        self.taken: list[Assignment] = []
        self.running: dict[str, int | None] = {}
        self.ready: set[str] = set()
        """Attempts that run and wait for their clearance."""
        self.hosts: dict[str, str] = {}
        self.cursors = {"h0": 0, "h1": 0}
        self.rows: dict[str, Outcome] = {}
        self.changes: list[Change] = []
        self.cursor = 0
        self.version = 0
        self.batches: list[Batch] = []

    def now(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """The result of what is there at once; None where it has to be waited for."""

        async def main() -> T | None:
            try:
                async with asyncio.timeout(0.001):
                    return await coroutine
            except TimeoutError:
                return None

        return self.loop.run_until_complete(main())

    @rule(again=st.booleans())
    def admit(self, again: bool) -> None:
        if again and self.taken:
            index = len(self.taken) // 2
            assert self.now(self.scheduler.admit("source", index)) == (self.taken[index],)
            return
        self.taken += self.now(self.scheduler.admit("source", len(self.taken))) or ()

    def waiting(self) -> list[str]:
        """Attempts that were taken and run nowhere."""
        ids = [a.trajectory_id for a in self.taken]
        return [t for t in ids if t not in self.rows and t not in self.running]

    @precondition(lambda self: self.waiting())
    @rule(pick=st.integers(0, 99), host=st.sampled_from(["h0", "h1"]))
    def permit(self, pick: int, host: str) -> None:
        trajectory_id = self.waiting()[pick % len(self.waiting())]
        permission: Permission = self.now(self.scheduler.permit(trajectory_id, host))
        if isinstance(permission, Cancellation):
            self.commit_row(trajectory_id, permission.outcome, None)
            return
        self.running[trajectory_id] = None
        self.hosts[trajectory_id] = host
        self.ready.discard(trajectory_id)
        if isinstance(permission, ResetOnly):
            self.ready.add(trajectory_id)

    def cleared(self) -> list[str]:
        """Attempts that may generate."""
        return [each for each in self.running if each not in self.ready]

    @precondition(lambda self: self.cleared())
    @rule(pick=st.integers(0, 99), told=st.booleans())
    def first_token(self, pick: int, told: bool) -> None:
        trajectory_id = self.cleared()[pick % len(self.cleared())]
        if self.running[trajectory_id] is None:
            self.running[trajectory_id] = self.version
        if told:
            self.now(self.scheduler.started(trajectory_id, self.running[trajectory_id] or 0))

    @precondition(lambda self: self.running)
    @rule(
        pick=st.integers(0, 99),
        outcome=st.sampled_from([Outcome.COMPLETED] * 3 + [Outcome.FAILED, Outcome.TIMED_OUT]),
        twice=st.booleans(),
    )
    def finish(self, pick: int, outcome: Outcome, twice: bool) -> None:
        trajectory_id = list(self.running)[pick % len(self.running)]
        version = self.running.pop(trajectory_id)
        if trajectory_id in self.ready:  # nothing was generated, but its reset may have failed
            self.ready.discard(trajectory_id)
            self.commit_row(trajectory_id, Outcome.FAILED, None)
            return
        self.commit_row(trajectory_id, outcome, self.version if version is None else version)
        if twice:
            self.commit_row(trajectory_id, Outcome.COMPLETED, self.version)

    def commit_row(self, trajectory_id: str, outcome: Outcome, start: int | None) -> None:
        """The first commit of a trajectory wins."""
        group_id, attempt = trajectory_id.rsplit("-", 1)
        new = self.buffer.put(sample(group_id, int(attempt), start=start, outcome=outcome))
        assert new == (trajectory_id not in self.rows)
        self.rows.setdefault(trajectory_id, outcome)

    def running_on(self, host: str) -> list[RunningAttempt]:
        attempts = [(t.rsplit("-", 1), v) for t, v in self.running.items() if self.hosts[t] == host]
        return [RunningAttempt(f"{g}-{a}", g, int(a), v) for (g, a), v in attempts]

    @rule(host=st.sampled_from(["h0", "h1"]), heard=st.booleans())
    def hear_orders(self, host: str, heard: bool) -> None:
        answer: tuple[int, tuple[Order, ...]] | None
        try:
            answer = self.now(self.scheduler.orders(host, self.cursors[host]))
        except UnknownClientError:
            answer, heard = self.now(self.scheduler.announce(host, self.running_on(host))), True
        if answer is None or not heard:
            return
        self.cursors[host], told = answer
        for order in told:
            if self.hosts.get(order.trajectory_id) != host:
                continue
            if isinstance(order, Clearance):
                self.ready.discard(order.trajectory_id)
                continue
            version = self.running.pop(order.trajectory_id, -1)
            if version != -1:
                self.ready.discard(order.trajectory_id)
                self.commit_row(order.trajectory_id, order.outcome, version)

    @rule(host=st.sampled_from(["h0", "h1"]))
    def lose_host(self, host: str) -> None:
        self.scheduler.rollout_worker_lost(host)
        for trajectory_id in [t for t in self.running if self.hosts[t] == host]:
            del self.running[trajectory_id]
            self.ready.discard(trajectory_id)

    @precondition(lambda self: self.buffer.cursor > self.cursor)
    @rule(repeat=st.booleans())
    def apply_changes(self, repeat: bool) -> None:
        answer: tuple[int, tuple[Change, ...]] | None = self.now(self.buffer.changes(self.cursor))
        assert answer is not None
        if not repeat:
            self.cursor = answer[0]
        for change in answer[1]:
            self.scheduler.apply(change)

    @precondition(lambda self: complete_groups(self.buffer) > 0)
    @rule()
    def drop_one(self) -> None:
        trained = {t for b in self.batches for t in b.trajectory_ids}
        for trajectory_id, outcome in self.rows.items():
            if outcome is Outcome.COMPLETED and trajectory_id not in trained:
                self.buffer.drop(trajectory_id, Reason.FILTERED)
                return

    @rule()
    def step(self) -> None:
        """get_batch, suspend, update, resume; the next step's weights follow at once."""
        number = len(self.batches) + 1
        batch: Batch | None = self.now(self.buffer.get_batch(number, self.version, BATCH_SIZE))
        if batch is not None:
            self.batches.append(batch)
            self.scheduler.batch_taken(batch)
            self.version += 1
            self.scheduler.version_updated(self.version)

    @invariant()
    def credits_are_bounded(self) -> None:
        assert len(self.scheduler.credits) <= self.scheduler.limit == 5

    @invariant()
    def only_what_is_admitted_generates(self) -> None:
        began = {t.rsplit("-", 1)[0] for t, v in self.running.items() if v is not None}
        assert not began & self.scheduler.ahead
        assert len(self.scheduler.ahead) <= AHEAD
        assert not self.scheduler.ahead & self.scheduler.credits

    @invariant()
    def attempts_are_unique(self) -> None:
        ids = [a.trajectory_id for a in self.taken]
        assert len(ids) == len(set(ids))

    @invariant()
    def groups_stay_within_their_attempts(self) -> None:
        assert all(a.attempt < SETTINGS.attempts_limit for a in self.taken)

    @invariant()
    def batches_keep_the_bound(self) -> None:
        assert all(max(batch.staleness) <= ALPHA for batch in self.batches)

    @invariant()
    def what_is_in_flight_is_bounded(self) -> None:
        assert self.scheduler.in_flight <= len(self.taken) + 5 * SETTINGS.attempts_limit

    def teardown(self) -> None:
        """Whatever happened, from here on everything ends and a batch can be formed."""
        before = len(self.batches)
        for _ in range(200):
            self.apply_all()
            self.admit(again=False)
            for host in ("h0", "h1"):
                self.hear_orders(host, heard=True)
            while self.waiting():
                self.permit(pick=0, host="h0")
            while self.cleared():
                trajectory_id = self.cleared()[0]
                place = list(self.running).index(trajectory_id)
                self.finish(pick=place, outcome=Outcome.COMPLETED, twice=False)
            self.step()
            if len(self.batches) >= before + 3:
                break
        assert len(self.batches) >= before + 3, "the run hangs"
        self.nothing_is_lost()
        self.loop.close()

    def apply_all(self) -> None:
        if self.buffer.cursor > self.cursor:
            self.apply_changes(repeat=False)

    def nothing_is_lost(self) -> None:
        """Each attempt has one row; each row is trained on, pending, untrainable or in an event."""
        self.scheduler.stop()
        for host in ("h0", "h1"):
            self.hear_orders(host, heard=True)
        while self.waiting():
            self.permit(pick=0, host="h0")
        self.apply_all()
        assert set(self.rows) == {a.trajectory_id for a in self.taken}
        assert self.scheduler.in_flight == 0
        trained = [t for b in self.batches for t in b.trajectory_ids]
        left = [e.subject for e in self.log.of(EventKind.DROP) + self.log.of(EventKind.EVICT)]
        assert len(trained + left) == len(set(trained + left))
        kept = sum(o is Outcome.COMPLETED for o in self.rows.values()) - len(trained + left)
        assert kept == len(self.buffer)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, derandomize=True
)

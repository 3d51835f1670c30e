"""RolloutScheduler: credits, groups, replacements, aborts, and restarts."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rollart_flow.control.protocols import (
    Cancellation,
    Change,
    Clearance,
    ResetOnly,
    RunningAttempt,
)
from rollart_flow.control.schedule.selection import WithinWindow
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.control.scheduler.groups import GroupRecord
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.errors import (
    BlockOverError,
    RunFailedError,
    SettingsError,
    UnknownClientError,
)
from rollart_flow.types import Assignment, EventKind, Outcome, Reason, Task
from tests.builders import batch_of, committed, sample
from tests.dst.environments import endless_tasks
from tests.dst.log import EventLog


class Bench:
    """A scheduler, what it emitted, and one source that asks for attempts."""

    def __init__(
        self,
        *,
        alpha: float = 0,
        batch_size: int = 4,
        group_size: int = 2,
        tasks: Iterator[tuple[Task, int]] | None = None,
        version: int = 0,
        ahead: int = 0,
        **settings: Any,
    ) -> None:
        self.log = EventLog()
        self.scheduler = RolloutScheduler(
            tasks or endless_tasks(),
            RolloutSettings(batch_size, group_size, **settings),
            StalenessPolicy(alpha),
            self.log,
            ahead=ahead,
            version=version,
        )
        self.index = 0
        self.cursors: dict[str, int] = {}

    async def admit(self) -> Assignment:
        """The next attempt, which must be there at once."""
        async with asyncio.timeout(0.001):
            (assignment,) = await self.scheduler.admit("source", self.index)
        self.index += 1
        return assignment

    async def admit_all(self) -> list[Assignment]:
        """Attempts until the scheduler makes the source wait."""
        taken = []
        while True:
            try:
                taken.append(await self.admit())
            except TimeoutError:
                return taken

    async def start(self, assignment: Assignment, version: int = 0, host: str = "host") -> None:
        """An attempt gets its permission and its first token."""
        assert await self.scheduler.permit(assignment.trajectory_id, host) is None
        await self.scheduler.started(assignment.trajectory_id, version)

    async def cancelled(self, host: str = "host") -> dict[str, tuple[Outcome, Reason]]:
        """What the host was told to stop since it was asked last."""
        try:
            async with asyncio.timeout(0.001):
                cursor, told = await self.scheduler.orders(host, self.cursors.get(host, 0))
        except TimeoutError:
            return {}
        self.cursors[host] = cursor
        stopped = (order for order in told if isinstance(order, Cancellation))
        return {c.trajectory_id: (c.outcome, c.reason) for c in stopped}


def ids(assignments: list[Assignment]) -> list[str]:
    return [assignment.trajectory_id for assignment in assignments]


async def test_groups_are_admitted_until_the_credits_are_used_up() -> None:
    bench = Bench(alpha=0, batch_size=4)
    assert ids(await bench.admit_all()) == [
        "g00000000-00",
        "g00000000-01",
        "g00000001-00",
        "g00000001-01",
    ]
    assert bench.scheduler.credits == {"g00000000", "g00000001"}


@pytest.mark.parametrize(("alpha", "groups"), [(0, 4), (0.5, 6), (0.6, 6), (1, 8), (2, 12)])
async def test_the_asynchronous_ratio_sets_the_number_of_credits(alpha: float, groups: int) -> None:
    bench = Bench(alpha=alpha, batch_size=8)
    await bench.admit_all()
    assert len(bench.scheduler.credits) == groups == bench.scheduler.limit


async def test_redundancy_is_budgeted_apart() -> None:
    bench = Bench(batch_size=4, redundancy=1, extra_groups=1)
    taken = await bench.admit_all()
    assert len(bench.scheduler.credits) == 3
    assert len(taken) == 3 * 3


async def test_an_admission_records_its_cursor_and_its_task() -> None:
    bench = Bench(batch_size=2)
    assignment = await bench.admit()
    (event,) = bench.log.of(EventKind.ADMIT)
    assert event.subject == assignment.group_id
    assert event.domain == "a"
    assert event.detail == {"cursor": 0, "task_id": "task-0", "payload": "{}"}


async def test_all_attempts_of_a_group_start_from_the_same_seed() -> None:
    first, second, third, _ = await Bench().admit_all()
    assert first.env_seed == second.env_seed != third.env_seed
    assert (await Bench().admit()).env_seed == first.env_seed
    assert (await Bench(seed=1).admit()).env_seed != first.env_seed


async def test_a_source_that_asks_again_gets_the_same_attempt() -> None:
    scheduler = Bench().scheduler
    first = await scheduler.admit("source", 0)
    assert await scheduler.admit("source", 0) is first
    assert await scheduler.admit("other", 0) is not first


async def test_a_block_holds_what_may_start_now_and_no_more_than_is_asked_for() -> None:
    bench = Bench(batch_size=4)  # with alpha 0, credits for two groups of two
    three = await bench.scheduler.admit("source", 0, 3)
    rest = await bench.scheduler.admit("source", 1, 3)
    assert [len(three), len(rest)] == [3, 1]
    assert await bench.scheduler.admit("source", 0, 3) is three
    waiting = asyncio.create_task(bench.scheduler.admit("source", 2, 3))
    await asyncio.sleep(1)
    assert not waiting.done()
    for each in (*three, *rest):
        bench.scheduler.apply(committed(each))
    bench.scheduler.batch_taken(batch_of(1, three[0].group_id))
    assert len(await waiting) == 2, "the credits of one group are free"


async def test_two_questions_about_the_same_index_share_the_answer_when_it_comes() -> None:
    bench = Bench(batch_size=2)
    taken = await bench.admit_all()
    asks = [asyncio.create_task(bench.scheduler.admit("source", 2)) for _ in range(2)]
    await asyncio.sleep(1)
    for each in taken:
        bench.scheduler.apply(committed(each))
    bench.scheduler.batch_taken(batch_of(1, taken[0].group_id))
    one, two = await asyncio.gather(*asks)
    assert one is two


async def test_a_block_that_was_forgotten_is_over() -> None:
    bench = Bench(batch_size=100, history=3)
    for _ in range(5):
        await bench.admit()
    with pytest.raises(BlockOverError, match="block 1 of source 'source' is over"):
        await bench.scheduler.admit("source", 1)
    await bench.scheduler.admit("source", 2)


async def test_credits_come_back_when_the_batch_is_taken_and_not_before() -> None:
    """Between get_batch and suspend a new group would start under a version that is about to go."""
    bench = Bench(batch_size=2)
    taken = await bench.admit_all()
    for each in taken:
        bench.scheduler.apply(committed(each))
    bench.scheduler.apply(Change(consumed="g00000000"))
    assert await bench.admit_all() == []
    bench.scheduler.batch_taken(batch_of(1, "g00000000"))
    assert ids(await bench.admit_all()) == ["g00000001-00", "g00000001-01"]


async def test_the_batch_may_be_known_before_the_commits_are() -> None:
    bench = Bench(batch_size=2, redundancy=1)
    taken = await bench.admit_all()
    for each in taken:
        await bench.start(each)
    bench.scheduler.batch_taken(batch_of(1, "g00000000"))
    assert await bench.cancelled() == {"g00000000-02": (Outcome.REDUNDANT, Reason.GROUP_COMPLETE)}
    for each in taken[:2]:
        bench.scheduler.apply(committed(each))
    bench.scheduler.apply(Change(consumed="g00000000"))
    assert await bench.cancelled() == {}
    assert bench.scheduler.credits == {"g00000001"}


async def test_surplus_is_cancelled_only_when_the_group_is_complete() -> None:
    bench = Bench(batch_size=2, redundancy=2)
    taken = await bench.admit_all()
    for each in taken[:3]:
        await bench.start(each)
    bench.scheduler.apply(committed(taken[0]))
    assert await bench.cancelled() == {}
    bench.scheduler.apply(committed(taken[1], outcome=Outcome.TRUNCATED))
    assert await bench.cancelled() == {
        taken[2].trajectory_id: (Outcome.REDUNDANT, Reason.GROUP_COMPLETE)
    }
    refused = await bench.scheduler.permit(taken[3].trajectory_id, "host")
    assert refused == Cancellation(taken[3].trajectory_id, Outcome.REDUNDANT, Reason.GROUP_COMPLETE)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT])
async def test_a_failed_attempt_is_replaced_by_the_next_index(outcome: Outcome) -> None:
    bench = Bench(batch_size=2)
    first, _ = await bench.admit_all()
    bench.scheduler.apply(committed(first, outcome=outcome, error="it broke"))
    replacement = await bench.admit()
    assert replacement.trajectory_id == "g00000000-02"
    (retry,) = bench.log.of(EventKind.RETRY)
    assert retry.subject == replacement.trajectory_id
    assert retry.detail["replaces"] == first.trajectory_id
    assert retry.detail["error"] == "it broke"


async def test_a_commit_that_is_told_twice_counts_once() -> None:
    bench = Bench(batch_size=2, breaker=2)
    first, _ = await bench.admit_all()
    for _ in range(3):
        bench.scheduler.apply(committed(first, outcome=Outcome.FAILED))
    assert ids(await bench.admit_all()) == ["g00000000-02"]
    assert bench.scheduler.failure is None


async def test_a_completed_attempt_without_a_score_is_replaced() -> None:
    bench = Bench(batch_size=2)
    await bench.admit_all()
    bench.scheduler.apply(Change(committed=sample("g00000000", 0, scored=False)))
    assert (await bench.admit()).attempt == 2


async def test_a_filtered_trajectory_is_replaced_even_after_its_group_was_complete() -> None:
    bench = Bench(batch_size=2)
    for each in await bench.admit_all():
        bench.scheduler.apply(committed(each))
    bench.scheduler.apply(Change(dropped=("g00000000-01", Reason.FILTERED)))
    assert (await bench.admit()).trajectory_id == "g00000000-02"
    bench.scheduler.apply(Change(dropped=("g00000000-01", Reason.FILTERED)))
    assert await bench.admit_all() == []


async def test_a_group_that_fails_too_often_is_abandoned_and_its_credit_returns() -> None:
    bench = Bench(batch_size=2, max_attempts=3, breaker=100)
    first, second = await bench.admit_all()
    bench.scheduler.apply(committed(first))
    bench.scheduler.apply(committed(second, outcome=Outcome.FAILED))
    third = await bench.admit()
    bench.scheduler.apply(committed(third, outcome=Outcome.FAILED))
    (abandoned,) = bench.log.of(EventKind.ABANDON)
    assert (abandoned.subject, abandoned.reason) == ("g00000000", Reason.GROUP_ABANDONED)
    assert (await bench.admit()).group_id == "g00000001"


async def test_an_update_aborts_what_can_no_longer_meet_the_bound() -> None:
    bench = Bench(alpha=1, batch_size=2)
    old, young = (await bench.admit_all())[:2]
    await bench.start(old, version=0)
    await bench.start(young, version=1)
    bench.scheduler.version_updated(1)
    assert await bench.cancelled() == {}
    bench.scheduler.version_updated(2)
    assert await bench.cancelled() == {old.trajectory_id: (Outcome.STALE, Reason.STALENESS_BOUND)}
    assert (await bench.admit()).trajectory_id == "g00000000-02", "a fresh one takes its place"
    bench.scheduler.apply(committed(old, outcome=Outcome.STALE))
    (abort,) = bench.log.of(EventKind.ABORT)
    assert (abort.subject, abort.policy_version) == (old.trajectory_id, 2)


async def test_an_attempt_that_ended_before_its_cancellation_was_not_aborted() -> None:
    bench = Bench(alpha=1, batch_size=2)
    old = (await bench.admit_all())[0]
    await bench.start(old, version=0)
    bench.scheduler.version_updated(2)
    assert old.trajectory_id in await bench.cancelled()
    bench.scheduler.apply(committed(old, outcome=Outcome.TRUNCATED, start=0))
    assert bench.log.of(EventKind.ABORT) == []


async def test_a_group_with_a_stale_member_is_dropped_whole() -> None:
    bench = Bench(alpha=1, batch_size=3, group_size=3)
    taken = await bench.admit_all()
    await bench.start(taken[0], version=0)
    await bench.start(taken[1], version=1)
    await bench.start(taken[2], version=0)
    bench.scheduler.apply(committed(taken[0], start=0))
    bench.scheduler.version_updated(2)
    assert await bench.cancelled() == {
        taken[1].trajectory_id: (Outcome.STALE, Reason.GROUP_EVICTED),
        taken[2].trajectory_id: (Outcome.STALE, Reason.STALENESS_BOUND),
    }
    (abandoned,) = bench.log.of(EventKind.ABANDON)
    assert (abandoned.subject, abandoned.reason) == ("g00000000", Reason.STALENESS_BOUND)
    assert "g00000000" not in bench.scheduler.credits


async def test_a_group_of_which_nothing_is_left_is_dropped() -> None:
    bench = Bench(alpha=0, batch_size=2)
    for each in await bench.admit_all():
        await bench.start(each, version=0)
    bench.scheduler.version_updated(1)
    assert len(await bench.cancelled()) == 2
    assert (await bench.admit()).group_id == "g00000001"


async def test_a_stale_commit_that_arrives_late_drops_its_group_too() -> None:
    bench = Bench(alpha=0, batch_size=2)
    taken = await bench.admit_all()
    bench.scheduler.version_updated(1)
    bench.scheduler.apply(committed(taken[0], start=0))
    assert "g00000000" not in bench.scheduler.credits


async def test_a_first_token_that_is_reported_late_is_judged_at_once() -> None:
    bench = Bench(alpha=0, batch_size=2)
    first, _ = await bench.admit_all()
    await bench.scheduler.permit(first.trajectory_id, "host")
    bench.scheduler.version_updated(1)
    await bench.scheduler.started(first.trajectory_id, 0)
    assert first.trajectory_id in await bench.cancelled()


async def test_an_echo_of_an_older_version_changes_nothing() -> None:
    bench = Bench(alpha=0, batch_size=2)
    bench.scheduler.version_updated(3)
    bench.scheduler.version_updated(1)
    assert bench.scheduler.version == 3


async def test_what_the_buffer_evicted_returns_its_credit() -> None:
    bench = Bench(batch_size=2)
    first, second = await bench.admit_all()
    await bench.start(second)
    bench.scheduler.apply(committed(first))
    bench.scheduler.apply(Change(evicted=("g00000000", Reason.STALENESS_BOUND)))
    assert await bench.cancelled() == {second.trajectory_id: (Outcome.STALE, Reason.GROUP_EVICTED)}
    assert (await bench.admit()).group_id == "g00000001"


async def test_attempts_of_a_lost_host_keep_their_ids_and_may_run_elsewhere() -> None:
    bench = Bench(alpha=1, batch_size=2)
    first, second = (await bench.admit_all())[:2]
    await bench.start(first, version=0, host="dead")
    bench.scheduler.rollout_worker_lost("dead")
    assert bench.log.of(EventKind.CRASH)[0].detail == {"attempts": 1}
    bench.scheduler.version_updated(5)
    assert await bench.scheduler.permit(first.trajectory_id, "heir") is None
    await bench.scheduler.started(first.trajectory_id, 5)
    await bench.start(second, version=5, host="heir")
    bench.scheduler.version_updated(7)
    assert set(await bench.cancelled("heir")) == {first.trajectory_id, second.trajectory_id}


async def test_a_host_that_was_lost_reports_its_attempts_and_misses_nothing() -> None:
    bench = Bench(alpha=0, batch_size=2)
    first, second = await bench.admit_all()
    await bench.start(first)
    await bench.start(second)
    bench.scheduler.version_updated(1)
    cursor, told = await bench.scheduler.orders("host", 0)
    assert len(told) == 2
    bench.scheduler.rollout_worker_lost("host")
    for each in await bench.admit_all():
        await bench.start(each, version=1)
    with pytest.raises(UnknownClientError):
        await bench.scheduler.orders("host", cursor)
    running = [RunningAttempt(f"g00000001-{i:02d}", "g00000001", i, 1) for i in range(2)]
    cursor, refused = await bench.scheduler.announce("host", running)
    assert refused == ()
    bench.scheduler.version_updated(2)
    _, told = await bench.scheduler.orders("host", cursor)
    assert [c.trajectory_id for c in told] == ["g00000001-00", "g00000001-01"]


async def test_a_cancellation_finds_the_host_that_took_an_attempt_over() -> None:
    bench = Bench(alpha=0, batch_size=2)
    first, _ = await bench.admit_all()
    await bench.start(first, host="dead")
    bench.scheduler.version_updated(1)
    bench.scheduler.rollout_worker_lost("dead")
    refused = await bench.scheduler.permit(first.trajectory_id, "heir")
    assert isinstance(refused, Cancellation)
    assert (refused.outcome, refused.reason) == (Outcome.STALE, Reason.STALENESS_BOUND)


async def test_a_host_that_was_lost_by_mistake_hears_later_cancellations() -> None:
    bench = Bench(alpha=0, batch_size=2)
    first, second = await bench.admit_all()
    listening = asyncio.create_task(bench.scheduler.orders("host", 0))
    await asyncio.sleep(1)
    await bench.start(first)
    bench.scheduler.rollout_worker_lost("host")
    cursor, told = await listening
    assert told == ()
    with pytest.raises(UnknownClientError):
        await bench.scheduler.orders("host", cursor)
    cursor, _ = await bench.scheduler.announce("host", ())
    await bench.start(second)
    bench.scheduler.version_updated(1)
    _, told = await bench.scheduler.orders("host", cursor)
    assert [c.trajectory_id for c in told] == [second.trajectory_id]


async def test_a_restarted_scheduler_takes_over_what_is_in_flight() -> None:
    before = Bench(batch_size=2)
    taken = await before.admit_all()
    restarted = RolloutScheduler(
        endless_tasks(), RolloutSettings(2, 2), StalenessPolicy(0), EventLog(), incarnation=1
    )
    restarted.restore([GroupRecord(taken[0].group_id, taken[0].task)], next_cursor=1)
    with pytest.raises(UnknownClientError, match="'source' has to report"):
        await restarted.admit("source", 1)
    await restarted.adopt("source", [[taken[0].trajectory_id]])
    late = RunningAttempt(f"{taken[0].group_id}-07", taken[0].group_id, 7, version=0)
    _, refused = await restarted.announce("host", [late])
    assert refused == (), "an attempt that the tables do not show goes on"
    (handed_out,) = await restarted.admit("source", 1)
    assert handed_out.trajectory_id == taken[1].trajectory_id, "and none is handed out twice"
    assert [each.trajectory_id for each in await restarted.admit("source", 0)] == ids(taken[:1]), (
        "a source that restarts, too, gets what it has received again"
    )
    restarted.version_updated(1)
    stale = await restarted.permit(late.trajectory_id, "host")
    assert isinstance(stale, Cancellation)
    assert stale.reason is Reason.STALENESS_BOUND


async def test_an_attempt_that_has_ended_is_not_wanted_again() -> None:
    bench = Bench(batch_size=2)
    first, _ = await bench.admit_all()
    bench.scheduler.apply(committed(first))
    assert await bench.scheduler.permit(first.trajectory_id, "host") == Cancellation(
        first.trajectory_id, Outcome.REDUNDANT, Reason.GROUP_COMPLETE
    )


async def test_a_domain_that_only_fails_fails_the_run_in_one_line() -> None:
    bench = Bench(batch_size=100, max_attempts=1_000)
    failing = asyncio.create_task(bench.scheduler.failed())
    count = 0
    while bench.scheduler.failure is None:
        assignment = await bench.admit()
        if assignment.task.domain == "a":
            count += 1
            error = f"no such map {count}"
            bench.scheduler.apply(committed(assignment, outcome=Outcome.FAILED, error=error))
        else:
            bench.scheduler.apply(committed(assignment))
    assert count == 32
    assert str(await failing) == (
        "domain 'a': 32 attempts in a row failed; the last one: no such map 32"
    )
    assert await bench.scheduler.admit("source", 10_000) == ()
    assert [e.subject for e in bench.log.of(EventKind.RUN)] == ["failed"]


async def test_a_success_between_failures_keeps_the_run_alive() -> None:
    bench = Bench(batch_size=100, max_attempts=1_000, breaker=3)
    for i in range(30):
        outcome = Outcome.COMPLETED if i % 3 == 2 else Outcome.FAILED
        change = sample("g00000000", 2 + i, outcome=outcome)
        await bench.admit()
        bench.scheduler.apply(Change(committed=change))
    assert bench.scheduler.failure is None


async def test_attempts_that_were_cancelled_say_nothing_about_their_domain() -> None:
    bench = Bench(batch_size=100, breaker=2)
    for _ in range(10):
        bench.scheduler.apply(committed(await bench.admit(), outcome=Outcome.REDUNDANT))
    assert bench.scheduler.failure is None


async def test_filters_that_let_nothing_through_fail_the_run() -> None:
    bench = Bench(batch_size=2, refusals=3)
    first, second = await bench.admit_all()
    bench.scheduler.apply(Change(committed=sample(first.group_id, 0, scored=False)))
    bench.scheduler.apply(committed(second))
    for _ in range(2):  # told twice, it counts once
        bench.scheduler.apply(Change(dropped=(second.trajectory_id, Reason.FILTERED)))
    assert bench.log.of(EventKind.RUN) == []
    third = await bench.admit()
    bench.scheduler.apply(committed(third))
    bench.scheduler.apply(Change(dropped=(third.trajectory_id, Reason.FILTERED)))
    assert bench.scheduler.failure is not None
    assert bench.scheduler.failure.message == (
        "filter: 3 trajectories were refused and no batch came together; "
        "the last one: g00000000-02; let more pass"
    )


async def test_a_batch_between_refusals_keeps_the_run_alive() -> None:
    bench = Bench(batch_size=2, refusals=2)
    for _ in range(4):
        first, second = await bench.admit_all()
        bench.scheduler.apply(committed(first))
        bench.scheduler.apply(Change(dropped=(first.trajectory_id, Reason.FILTERED)))
        bench.scheduler.apply(committed(second))
        bench.scheduler.apply(committed(await bench.admit()))
        bench.scheduler.apply(Change(consumed=first.group_id))
        bench.scheduler.batch_taken(batch_of(1, first.group_id))
    assert bench.scheduler.failure is None


async def test_stop_admits_nothing_more_and_cancels_what_is_in_flight() -> None:
    bench = Bench(batch_size=4)
    taken = await bench.admit_all()
    await bench.start(taken[0])
    waiting = asyncio.create_task(bench.scheduler.admit("source", 4))
    await asyncio.sleep(1)
    bench.scheduler.stop()
    bench.scheduler.stop()
    assert await waiting == ()
    assert await bench.scheduler.admit("other", 0) == ()
    assert await bench.scheduler.admit("source", 0) == (taken[0],)
    assert await bench.cancelled() == {
        taken[0].trajectory_id: (Outcome.CANCELLED, Reason.RUN_STOPPED)
    }
    for each in taken[1:]:
        refused = await bench.scheduler.permit(each.trajectory_id, "host")
        assert refused == Cancellation(each.trajectory_id, Outcome.CANCELLED, Reason.RUN_STOPPED)
        bench.scheduler.apply(committed(each, outcome=Outcome.CANCELLED, start=None))
    assert bench.log.of(EventKind.RETRY) == []
    assert bench.scheduler.in_flight == 1


async def test_tasks_that_end_before_a_batch_is_full_fail_the_run() -> None:
    bench = Bench(batch_size=4, tasks=iter([(Task("only", "a"), 0)]))
    await bench.admit()
    await bench.admit()
    assert await bench.scheduler.admit("source", 2) == ()
    with pytest.raises(RunFailedError, match="the tasks ended after 1 group,"):
        raise await bench.scheduler.failed()


async def test_tasks_that_are_enough_may_end() -> None:
    tasks = iter([(Task(f"t{i}", "a"), i) for i in range(2)])
    bench = Bench(alpha=1, batch_size=4, tasks=tasks)
    for each in await bench.admit_all():
        bench.scheduler.apply(committed(each))
    assert bench.scheduler.failure is None


async def test_tasks_that_raise_fail_the_run() -> None:
    def tasks() -> Iterator[tuple[Task, int]]:
        yield Task("t", "a"), 0
        raise KeyError("column")

    bench = Bench(batch_size=4, tasks=tasks())
    await bench.admit()
    await bench.admit()
    assert await bench.scheduler.admit("source", 2) == ()
    assert str(bench.scheduler.failure) == "the tasks raised KeyError: 'column'"


async def test_cursors_that_do_not_grow_fail_the_run() -> None:
    tasks = iter([(Task("t", "a"), 3), (Task("t", "a"), 3)])
    bench = Bench(batch_size=4, tasks=tasks)
    await bench.admit()
    await bench.admit()
    assert await bench.scheduler.admit("source", 2) == ()
    assert "cursor went from 3 to 3" in str(bench.scheduler.failure)


async def test_a_restored_scheduler_launches_what_is_missing_under_the_same_ids() -> None:
    bench = Bench(alpha=1, batch_size=4, tasks=iter([(Task("t9", "a"), 9)]), version=1)
    bench.scheduler.restore(
        [
            GroupRecord("g00000004", Task("t4", "a"), (sample("g00000004", 1, start=1),)),
            GroupRecord(
                "g00000005",
                Task("t5", "a"),
                (sample("g00000005", 0, start=1), sample("g00000005", 1, start=1)),
            ),
            GroupRecord(
                "g00000006",
                Task("t6", "a"),
                (
                    sample("g00000006", 0, outcome=Outcome.FAILED),
                    sample("g00000006", 1, start=1),
                    sample("g00000006", 2, start=1),
                ),
                dropped=frozenset({"g00000006-02"}),
            ),
        ]
    )
    assert ids([await bench.admit() for _ in range(4)]) == [
        "g00000004-00",
        "g00000006-03",
        "g00000009-00",
        "g00000009-01",
    ]
    assert bench.scheduler.credits == {"g00000004", "g00000005", "g00000006", "g00000009"}


async def test_a_restored_group_that_is_too_old_is_dropped() -> None:
    bench = Bench(alpha=1, batch_size=2, version=3)
    record = GroupRecord("g00000000", Task("t", "a"), (sample("g00000000", 0, start=1),))
    bench.scheduler.restore([record])
    assert bench.scheduler.credits == frozenset()


async def test_after_a_restart_a_host_makes_its_attempts_known() -> None:
    bench = Bench(batch_size=2)
    bench.scheduler.restore([GroupRecord("g00000000", Task("t", "a"))])
    assert await bench.scheduler.permit("g00000000-00", "survivor") is None
    assert ids(await bench.admit_all()) == ["g00000000-01"]


async def test_a_rollout_worker_reports_to_a_restarted_scheduler_and_reads_everything() -> None:
    log = EventLog()
    scheduler = RolloutScheduler(
        endless_tasks(), RolloutSettings(2, 2), StalenessPolicy(0), log, incarnation=1
    )
    (first,) = await scheduler.admit("source", 0)
    await scheduler.permit(first.trajectory_id, "host")
    scheduler.stop()
    with pytest.raises(UnknownClientError, match="host has to report"):
        await scheduler.orders("host", 123)
    cursor, refused = await scheduler.announce("host", ())
    assert (cursor, refused) == (1 << 32, ())
    cursor, told = await scheduler.orders("host", cursor)
    assert len(told) == 1
    assert cursor == (1 << 32) + 1


async def test_settled_waits_for_what_a_version_would_make_too_old() -> None:
    bench = Bench(alpha=1, group_size=2)
    taken = await bench.admit_all()
    for assignment in taken:
        await bench.start(assignment)
    await bench.scheduler.settled(1)
    waiting = asyncio.create_task(bench.scheduler.settled(2))
    for assignment in taken:
        await asyncio.sleep(1)
        assert not waiting.done()
        bench.scheduler.apply(committed(assignment))
    await waiting


async def test_settled_does_not_wait_for_as_many_slow_groups_as_others_stand_in_for() -> None:
    bench = Bench(alpha=1, batch_size=4, extra_groups=1)
    taken = await bench.admit_all()
    for assignment in taken:
        await bench.start(assignment)
    waiting = asyncio.create_task(bench.scheduler.settled(2))
    for assignment in taken[:-4]:
        bench.scheduler.apply(committed(assignment))
    await asyncio.sleep(1)
    assert not waiting.done(), "two groups are slow, and one is surplus"
    for assignment in taken[-4:-2]:
        bench.scheduler.apply(committed(assignment))
    await waiting


async def test_settled_does_not_wait_for_the_late_replacement_of_one_group_in_twenty() -> None:
    bench = Bench(alpha=1, batch_size=40, max_attempts=4)
    for each in await bench.admit_all():
        failed = each.trajectory_id in ("g00000000-01", "g00000001-01")
        outcome = Outcome.FAILED if failed else Outcome.COMPLETED
        await bench.start(each, version=0)
        bench.scheduler.apply(committed(each, outcome=outcome))
    bench.scheduler.version_updated(1)
    waiting = asyncio.create_task(bench.scheduler.settled(2))
    await asyncio.sleep(1)
    assert not waiting.done(), "two groups of twenty lack a replacement"
    bench.scheduler.apply(committed((await bench.admit_all())[0], start=1))
    await waiting
    bench.scheduler.version_updated(2)
    left = [event.subject for event in bench.log.of(EventKind.ABANDON)]
    assert left == ["g00000001"], "the group that nobody waited for is too old now"


async def test_settled_ends_with_the_run() -> None:
    bench = Bench(alpha=1)
    for assignment in await bench.admit_all():
        await bench.start(assignment)
    waiting = asyncio.create_task(bench.scheduler.settled(2))
    await asyncio.sleep(1)
    bench.scheduler.stop()
    await waiting


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"batch_size": 3}, "multiple of group_size 2"),
        ({"batch_size": 0}, "multiple of group_size 2"),
        ({"group_size": 0}, "group_size is 0"),
        ({"redundancy": -1}, "redundancy is -1"),
        ({"extra_groups": -1}, "extra_groups is -1"),
        ({"max_attempts": 1}, "max_attempts is 1"),
        ({"breaker": 0}, "breaker is 0"),
        ({"refusals": 0}, "refusals is 0"),
    ],
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        RolloutSettings(**{"batch_size": 4, "group_size": 2} | bad)


async def test_a_run_that_was_handed_out_again_stops_once_the_attempt_has_a_row() -> None:
    """Found by the fuzzer (seed 190): the row of the first run came, and the second went on."""
    bench = Bench(batch_size=1, group_size=1)
    bench.scheduler.restore([GroupRecord("g00000000", Task("t", "a"))])
    again = await bench.admit()
    await bench.start(again)
    bench.scheduler.apply(committed(again, outcome=Outcome.FAILED))
    stopped = {again.trajectory_id: (Outcome.REDUNDANT, Reason.GROUP_COMPLETE)}
    assert await bench.cancelled() == stopped


async def test_so_does_one_that_was_handed_out_again_after_its_group_lost_a_member() -> None:
    """Found by the fuzzer (seed 29879): the group was complete when it was restored."""
    bench = Bench(batch_size=1, group_size=1, redundancy=1)
    member = sample("g00000000", 0)
    bench.scheduler.restore([GroupRecord("g00000000", Task("t", "a"), (member,))])
    bench.scheduler.apply(Change(dropped=(member.trajectory_id, Reason.FILTERED)))
    again = await bench.admit()
    await bench.start(again)
    bench.scheduler.apply(committed(again, outcome=Outcome.REDUNDANT))
    stopped = {again.trajectory_id: (Outcome.REDUNDANT, Reason.GROUP_COMPLETE)}
    assert await bench.cancelled() == stopped


async def test_an_attempt_on_two_hosts_is_cancelled_on_both() -> None:
    """Found by the fuzzer (seed 32): only who asked last was told."""
    bench = Bench(batch_size=1, group_size=1)
    attempt = await bench.admit()
    for host in ("one", "other"):
        await bench.start(attempt, host=host)
    bench.scheduler.stop()
    stopped = {attempt.trajectory_id: (Outcome.CANCELLED, Reason.RUN_STOPPED)}
    assert await bench.cancelled("one") == await bench.cancelled("other") == stopped


async def test_the_drop_of_a_surplus_row_that_was_restored_leaves_the_group_whole() -> None:
    """Found by the fuzzer (seed 170): the group gave its credit back and waited in the buffer."""
    bench = Bench(batch_size=2, group_size=2)
    rows = tuple(sample("g00000000", attempt) for attempt in range(3))
    bench.scheduler.restore([GroupRecord("g00000000", Task("t", "a"), rows)])
    bench.scheduler.apply(Change(dropped=(rows[2].trajectory_id, Reason.GROUP_COMPLETE)))
    assert bench.scheduler.credits == {"g00000000"}


async def test_a_window_counts_groups_that_left_before_a_restart() -> None:
    """Found by the fuzzer (seed 9829): a group was admitted beyond the window."""
    scheduler = RolloutScheduler(
        endless_tasks(3),
        RolloutSettings(4, 1),
        StalenessPolicy(0),
        EventLog(),
        admission=WithinWindow(2),
    )
    scheduler.restore([GroupRecord("g00000000", Task("t", "a"))], next_cursor=3)
    assert await scheduler.admit("source", 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await scheduler.admit("source", 1)


async def test_environments_are_reset_ahead_in_the_room_that_ended_attempts_leave() -> None:
    bench = Bench(alpha=0, batch_size=4, ahead=4)
    admitted = await bench.admit_all()
    assert len(admitted) == 4, "all places are taken, so nothing is opened ahead"
    for each in admitted:
        await bench.start(each)
    bench.scheduler.apply(committed(admitted[0]))
    assert await bench.admit_all() == [], "there is no room for a whole group"
    bench.scheduler.apply(committed(admitted[1]))
    ahead = await bench.admit_all()
    assert {each.group_id for each in ahead} == {"g00000002"}
    assert bench.scheduler.credits == {"g00000000", "g00000001"}
    assert [event.subject for event in bench.log.of(EventKind.PREPARE)] == ["g00000002"]
    assert await bench.scheduler.permit(ahead[0].trajectory_id, "host") == ResetOnly()
    for each in admitted[2:]:
        bench.scheduler.apply(committed(each))
    bench.scheduler.batch_taken(batch_of(1, "g00000000", "g00000001"))
    _, orders = await bench.scheduler.orders("host", 0)
    assert orders == (Clearance(ahead[0].trajectory_id),), "the other has not asked yet"
    assert await bench.scheduler.permit(ahead[1].trajectory_id, "host") is None
    opened = [event.subject for event in bench.log.of(EventKind.ADMIT)]
    assert opened == [f"g{n:08d}" for n in range(4)], "the source has asked for another one"
    assert bench.log.of(EventKind.ADMIT)[2].detail == bench.log.of(EventKind.PREPARE)[0].detail


async def test_no_more_attempts_are_reset_ahead_than_the_setting_says() -> None:
    bench = Bench(alpha=1, batch_size=4, ahead=3)
    for each in await bench.admit_all():
        await bench.start(each)
        bench.scheduler.apply(committed(each))
    assert len(await bench.admit_all()) == 2, "one group of two, though there is room for more"


async def test_further_environments_are_reset_ahead_without_any_place_of_ended_attempts() -> None:
    bench = Bench(alpha=0, batch_size=4, ahead=4, extra_environments=2)
    assert len(await bench.admit_all()) == 6
    assert bench.scheduler.ahead == {"g00000002"}


async def test_a_group_that_fails_ahead_of_its_admission_leaves_its_room() -> None:
    bench = Bench(alpha=0, batch_size=2, ahead=2, max_attempts=2)
    for each in await bench.admit_all():
        await bench.start(each)
        bench.scheduler.apply(committed(each))
    for each in await bench.admit_all():
        bench.scheduler.apply(committed(each, outcome=Outcome.FAILED, start=None))
    assert [event.subject for event in bench.log.of(EventKind.ABANDON)] == ["g00000001"]
    assert {each.group_id for each in await bench.admit_all()} == {"g00000002"}
    bench.scheduler.stop()


async def test_a_restarted_scheduler_knows_what_waits_and_what_need_not() -> None:
    bench = Bench(alpha=0, batch_size=4, ahead=4)
    groups = [
        GroupRecord(f"g{n:08d}", Task(f"task-{n}", "a"), admitted=admitted)
        for n, admitted in enumerate((True, False, False))
    ]
    bench.scheduler.restore(groups, next_cursor=3)
    assert bench.scheduler.credits == {"g00000000", "g00000001"}, "a credit was free"
    assert [event.subject for event in bench.log.of(EventKind.ADMIT)] == ["g00000001"]
    running = [RunningAttempt(f"g{n:08d}-00", f"g{n:08d}", 0, None) for n in (1, 2)]
    cursor, orders = await bench.scheduler.announce("host", running)
    assert orders == (Clearance("g00000001-00"),)
    bench.scheduler.apply(Change(evicted=("g00000000", Reason.STALENESS_BOUND)))
    _, orders = await bench.scheduler.orders("host", cursor)
    assert orders == (Clearance("g00000002-00"),)


async def test_attempts_that_wait_for_their_admission_are_cancelled_at_the_end() -> None:
    bench = Bench(alpha=0, batch_size=2, ahead=2)
    for each in await bench.admit_all():
        await bench.start(each)
        bench.scheduler.apply(committed(each))
    ready, queued = await bench.admit_all()
    await bench.scheduler.permit(ready.trajectory_id, "host")
    bench.scheduler.stop()
    over = (Outcome.CANCELLED, Reason.RUN_STOPPED)
    assert await bench.cancelled() == {ready.trajectory_id: over}
    assert await bench.scheduler.permit(queued.trajectory_id, "host") == Cancellation(
        queued.trajectory_id, *over
    )


async def test_a_scheduler_that_restarts_after_the_end_cancels_what_was_reset_ahead() -> None:
    bench = Bench(alpha=0, batch_size=2, ahead=2)
    task = Task("task-0", "a")
    bench.scheduler.restore([GroupRecord(f"g{n:08d}", task, admitted=not n) for n in (0, 1)], 2)
    bench.scheduler.stop()
    ready = RunningAttempt("g00000001-00", "g00000001", 0, None)
    _, orders = await bench.scheduler.announce("host", [ready])
    assert orders == (Cancellation("g00000001-00", Outcome.CANCELLED, Reason.RUN_STOPPED),)


async def test_what_an_earlier_scheduler_opened_ahead_is_handed_out_once_it_is_admitted() -> None:
    """It may be ready, and keep its place: a second run of it could take the last place."""
    bench = Bench(alpha=0, batch_size=2, ahead=2)
    task = Task("task-0", "a")
    bench.scheduler.restore([GroupRecord(f"g{n:08d}", task, admitted=not n) for n in (0, 1)], 2)
    assert {each.group_id for each in await bench.admit_all()} == {"g00000000"}
    bench.scheduler.apply(Change(evicted=("g00000000", Reason.STALENESS_BOUND)))
    assert {each.group_id for each in await bench.admit_all()} == {"g00000001"}

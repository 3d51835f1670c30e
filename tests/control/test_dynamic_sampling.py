"""Groups that a filter refuses once they are complete: evicted whole, recorded, replaced."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.ids import group_cursor
from rollart_flow.control.protocols import Change
from rollart_flow.control.schedule.staleness import StalenessPolicy
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from rollart_flow.control.scheduler.rollout_settings import RolloutSettings
from rollart_flow.types import Assignment, EventKind, Reason, Task
from tests.builders import sample
from tests.dst.environments import endless_tasks
from tests.dst.log import EventLog
from tests.pending import complete_groups

BATCH, GROUP = 4, 2


class Plane:
    """A scheduler and a buffer that tell each other everything; attempts end as soon as asked."""

    def __init__(
        self,
        judge: Callable[[Sequence[str]], str | None],
        *,
        tasks: Iterator[tuple[Task, int]] | None = None,
        refusals: int = 1_000,
    ) -> None:
        self.log = EventLog()
        bound = StalenessPolicy(1)
        self.buffer = SampleBuffer(bound, GROUP, self.log, judge=judge)
        self.scheduler = RolloutScheduler(
            tasks or endless_tasks(),
            RolloutSettings(BATCH, GROUP, refusals=refusals),
            bound,
            self.log,
        )
        self.cursor = 0
        self.asked = 0

    async def attempt(self) -> Assignment | None:
        """Run one attempt; None where the scheduler admits none any more."""
        assignments = await self.scheduler.admit("source", self.asked)
        self.asked += 1
        for assignment in assignments:
            self.buffer.put(sample(assignment.group_id, assignment.attempt))
            await self.tell()
        return assignments[0] if assignments else None

    async def tell(self) -> None:
        self.cursor, changes = await self.buffer.changes(self.cursor)
        for change in changes:
            self.scheduler.apply(change)

    async def until_ready(self, groups: int) -> None:
        while complete_groups(self.buffer) < groups:
            assert await self.attempt() is not None


def odd(members: Sequence[str]) -> str | None:
    """Refuse every second group."""
    return "odd" if group_cursor(members[0].rpartition("-")[0]) % 2 else None


async def test_refused_groups_are_replaced_until_a_batch_comes_together() -> None:
    plane = Plane(odd)
    await plane.until_ready(2)
    batch = await plane.buffer.get_batch(1, 0, BATCH)
    assert dict.fromkeys(batch.group_ids) == dict.fromkeys(["g00000000", "g00000002"])
    evicted = [(e.subject, e.reason, e.detail["filter"]) for e in plane.log.of(EventKind.EVICT)]
    assert evicted == [
        ("g00000001-00", Reason.GROUP_FILTERED, "odd"),
        ("g00000001-01", Reason.GROUP_FILTERED, "odd"),
    ]
    assert plane.log.of(EventKind.ABANDON) == []


async def test_a_refused_group_gives_its_credit_back() -> None:
    plane = Plane(odd)
    for _ in range(10 * BATCH):
        if complete_groups(plane.buffer) == plane.scheduler.limit:
            break
        await plane.attempt()
    assert complete_groups(plane.buffer) == plane.scheduler.limit == 4
    assert plane.scheduler.in_flight == 0


async def test_a_filter_that_refuses_every_group_fails_the_run() -> None:
    plane = Plane(lambda members: "never", refusals=10)
    while await plane.attempt() is not None:
        assert plane.asked <= 10, "no more is run than the limit lets be refused"
    assert plane.scheduler.failure is not None
    assert plane.scheduler.failure.message == (
        "filter: 10 trajectories were refused and no batch came together; "
        "the last one: g00000004; let more pass"
    )
    assert len(plane.buffer) == 0


async def test_tasks_that_end_before_enough_is_let_through_fail_the_run() -> None:
    few = iter([(Task(f"t{cursor}", "a"), cursor) for cursor in range(3)])
    plane = Plane(lambda members: "never", tasks=few)
    while await plane.attempt() is not None:
        pass
    assert plane.scheduler.failure is not None
    assert "the tasks ended after 3 groups" in plane.scheduler.failure.message


async def test_an_eviction_that_is_told_twice_counts_once() -> None:
    plane = Plane(odd, refusals=4)
    await plane.until_ready(2)
    for _ in range(5):
        plane.scheduler.apply(Change(evicted=("g00000001", Reason.GROUP_FILTERED)))
    assert plane.scheduler.failure is None


async def test_a_batch_between_refusals_keeps_the_run_alive() -> None:
    plane = Plane(odd, refusals=6)
    for step in range(1, 6):
        await plane.until_ready(2)
        batch = await plane.buffer.get_batch(step, 0, BATCH)
        plane.scheduler.batch_taken(batch)
        await plane.tell()
    assert plane.scheduler.failure is None
    assert len(plane.log.of(EventKind.EVICT)) > 6


async def test_what_is_too_old_when_it_is_complete_is_not_judged() -> None:
    judged = []

    def judge(members: Sequence[str]) -> None:
        judged.append(tuple(members))

    plane = Plane(judge)
    waiting = asyncio.create_task(plane.buffer.get_batch(3, 2, BATCH))
    await asyncio.sleep(0)  # from now on version 0 is too old
    for group_id, starts in (("g00000000", (2, 0)), ("g00000001", (2, 2)), ("g00000002", (1, 1))):
        for attempt, start in enumerate(starts):
            plane.buffer.put(sample(group_id, attempt, start=start))
    assert set((await waiting).group_ids) == {"g00000001", "g00000002"}
    assert [members[0] for members in judged] == ["g00000001-00", "g00000002-00"]
    assert {e.reason for e in plane.log.of(EventKind.EVICT)} == {Reason.STALENESS_BOUND}


async def test_a_restored_buffer_judges_what_it_finds() -> None:
    """The record of an eviction may have been lost with the process that decided it."""
    plane = Plane(odd)
    found = [sample(f"g{group:08d}", attempt) for group in range(2) for attempt in range(GROUP)]
    plane.buffer.restore(found)
    assert complete_groups(plane.buffer) == 1
    assert {event.subject for event in plane.log.of(EventKind.EVICT)} == {
        "g00000001-00",
        "g00000001-01",
    }

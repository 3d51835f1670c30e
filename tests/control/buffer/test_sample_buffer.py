"""SampleBuffer: fresh complete groups, oldest first, each trajectory once."""

import asyncio

import pytest

from rollart_flow.control.buffer.sample_buffer import SampleBuffer
from rollart_flow.control.protocols import Change
from rollart_flow.control.schedule.staleness import LagBound, StalenessPolicy
from rollart_flow.errors import RunFailedError, SettingsError
from rollart_flow.types import EventKind, Outcome, Reason
from tests.builders import batch_of, sample
from tests.dst.log import EventLog
from tests.pending import complete_groups


def make(
    alpha: float = 1,
    group_size: int = 2,
    memory: int = 100,
    kind: type[StalenessPolicy] = StalenessPolicy,
) -> tuple[SampleBuffer, EventLog]:
    log = EventLog()
    return SampleBuffer(kind(alpha), group_size, log, memory=memory), log


def put_group(buffer: SampleBuffer, group_id: str, *starts: int) -> None:
    for attempt, start in enumerate(starts):
        assert buffer.put(sample(group_id, attempt, start=start))


async def changes_of(buffer: SampleBuffer) -> tuple[Change, ...]:
    return (await buffer.changes(0))[1]


async def test_a_batch_waits_until_enough_groups_are_complete() -> None:
    buffer, _ = make()
    batch = asyncio.create_task(buffer.get_batch(1, 0, 4))
    put_group(buffer, "g1", 0, 0)
    put_group(buffer, "g2", 0)
    await asyncio.sleep(10)
    assert not batch.done()
    buffer.put(sample("g2", 1))
    formed = await batch
    assert formed.trajectory_ids == ("g1-00", "g1-01", "g2-00", "g2-01")
    assert formed.group_ids == ("g1", "g1", "g2", "g2")
    assert (formed.step, formed.policy_version, formed.trained_version) == (1, 0, 0)
    assert len(buffer) == 0


async def test_a_batch_says_how_old_its_trajectories_are() -> None:
    buffer, _ = make()
    put_group(buffer, "g1", 2, 3)
    assert (await buffer.get_batch(4, 3, 2)).staleness == (1, 0)


async def test_a_bound_on_the_lag_counts_from_the_version_that_is_trained() -> None:
    """Version 3 trains in step 4; the engines still serve version 2."""
    by_kind = {}
    kinds: tuple[type[StalenessPolicy], ...] = (StalenessPolicy, LagBound)
    for kind in kinds:
        buffer, log = make(kind=kind)
        put_group(buffer, "old", 1, 2)
        put_group(buffer, "young", 2, 2)
        batch = await buffer.get_batch(4, 2, 2)
        by_kind[kind] = (batch.group_ids[0], batch.lag, len(log.events))
    assert by_kind == {
        StalenessPolicy: ("old", (2, 1), 0),
        LagBound: ("young", (1, 1), 2),
    }


async def test_a_group_that_comes_too_late_for_the_bound_on_the_lag_is_evicted() -> None:
    buffer, log = make(kind=LagBound)
    put_group(buffer, "first", 3, 3)
    await buffer.get_batch(5, 3, 2)
    buffer.put(sample("late", 0, start=2))
    assert len(buffer) == 0
    assert {event.reason for event in log.events} == {Reason.STALENESS_BOUND}


async def test_the_oldest_groups_go_first_in_order_of_attempts() -> None:
    buffer, _ = make()
    put_group(buffer, "young", 3, 3)
    buffer.put(sample("old", 1, start=3))
    buffer.put(sample("old", 0, start=2))
    assert (await buffer.get_batch(4, 3, 2)).trajectory_ids == ("old-00", "old-01")


async def test_asked_again_a_step_gets_the_same_batch() -> None:
    buffer, _ = make()
    put_group(buffer, "g1", 0, 0)
    put_group(buffer, "g2", 0, 0)
    first = await buffer.get_batch(1, 0, 2)
    assert await buffer.get_batch(1, 0, 2) is first
    assert (await buffer.get_batch(2, 0, 2)).group_ids == ("g2", "g2")
    assert await buffer.get_batch(1, 0, 2) is first


async def test_two_that_wait_for_the_same_step_get_the_same_batch() -> None:
    buffer, _ = make()
    waits = [asyncio.create_task(buffer.get_batch(1, 0, 2)) for _ in range(2)]
    await asyncio.sleep(1)
    put_group(buffer, "g1", 0, 0)
    put_group(buffer, "g2", 0, 0)
    one, two = await asyncio.gather(*waits)
    assert one is two
    assert complete_groups(buffer) == 1


async def test_a_step_that_is_long_over_never_gets_another_batch() -> None:
    buffer, _ = make()
    for step in range(1, 12):
        put_group(buffer, f"g{step}", 0, 0)
        await buffer.get_batch(step, 0, 2)
    put_group(buffer, "late", 0, 0)
    with pytest.raises(RunFailedError, match="batch of step 1 is forgotten"):
        await buffer.get_batch(1, 0, 2)


@pytest.mark.parametrize("size", [0, 3, -2])
async def test_a_size_that_splits_groups_is_refused(size: int) -> None:
    buffer, _ = make()
    with pytest.raises(SettingsError, match="multiple of group_size 2"):
        await buffer.get_batch(1, 0, size)


def test_a_group_size_of_zero_is_refused() -> None:
    with pytest.raises(SettingsError, match="group_size is 0"):
        SampleBuffer(StalenessPolicy(1), 0, EventLog())


async def test_stale_groups_are_evicted_whole_before_a_batch_is_formed() -> None:
    buffer, log = make(alpha=1)
    put_group(buffer, "mixed", 0, 2)
    put_group(buffer, "fresh", 1, 2)
    put_group(buffer, "half", 0)
    batch = await buffer.get_batch(3, 2, 2)
    assert batch.group_ids == ("fresh", "fresh")
    evicted = log.of(EventKind.EVICT)
    assert [(e.subject, e.reason, e.policy_version) for e in evicted] == [
        ("mixed-00", Reason.STALENESS_BOUND, 2),
        ("mixed-01", Reason.STALENESS_BOUND, 2),
        ("half-00", Reason.STALENESS_BOUND, 2),
    ]
    changes = await changes_of(buffer)
    assert Change(evicted=("mixed", Reason.STALENESS_BOUND)) in changes
    assert len(buffer) == 0


async def test_what_is_put_while_a_batch_is_awaited_is_held_to_the_bound_too() -> None:
    buffer, log = make(alpha=0)
    batch = asyncio.create_task(buffer.get_batch(2, 1, 2))
    await asyncio.sleep(0)
    put_group(buffer, "stale", 0, 0)
    await asyncio.sleep(1)
    assert not batch.done()
    evicted, late = log.of(EventKind.EVICT), log.of(EventKind.DROP)
    assert [(e.subject, e.reason) for e in evicted] == [("stale-00", Reason.STALENESS_BOUND)]
    assert [(e.subject, e.reason) for e in late] == [("stale-01", Reason.GROUP_EVICTED)]
    put_group(buffer, "fresh", 1, 1)
    assert (await batch).group_ids == ("fresh", "fresh")


async def test_the_first_commit_of_a_trajectory_wins() -> None:
    buffer, log = make()
    assert buffer.put(sample("g1", 0, start=0))
    assert buffer.knows("g1-00")
    assert not buffer.put(sample("g1", 0, start=5))
    buffer.put(sample("g1", 1))
    assert (await buffer.get_batch(1, 0, 2)).staleness == (0, 0)
    assert not buffer.put(sample("g1", 0))
    assert sum(change.committed is not None for change in await changes_of(buffer)) == 2
    assert log.events == []


async def test_what_cannot_be_trained_on_is_reported_and_not_kept() -> None:
    buffer, _ = make()
    untrainable = [
        sample("g1", 0, outcome=Outcome.FAILED, error="broke"),
        sample("g1", 1, scored=False),
        sample("g1", 2, start=None),
        sample("g1", 3, outcome=Outcome.STALE),
    ]
    for each in untrainable:
        assert buffer.put(each)
        assert not buffer.put(each)
    assert len(buffer) == 0
    assert await changes_of(buffer) == tuple(Change(committed=each) for each in untrainable)


async def test_surplus_members_are_dropped_with_a_reason() -> None:
    buffer, log = make()
    put_group(buffer, "g1", 0, 0, 0)
    (drop,) = log.of(EventKind.DROP)
    assert (drop.subject, drop.reason) == ("g1-02", Reason.GROUP_COMPLETE)
    assert drop.detail["group_id"] == "g1"
    assert (await changes_of(buffer))[-1] == Change(dropped=("g1-02", Reason.GROUP_COMPLETE))
    assert len(buffer) == 2


async def test_members_that_come_after_their_group_left_are_dropped() -> None:
    buffer, log = make(alpha=0)
    put_group(buffer, "trained", 0, 0)
    await buffer.get_batch(1, 0, 2)
    put_group(buffer, "evicted", 0)
    put_group(buffer, "next", 1, 1)
    await buffer.get_batch(2, 1, 2)
    buffer.put(sample("trained", 2))
    buffer.put(sample("evicted", 1))
    assert [(e.subject, e.reason) for e in log.of(EventKind.DROP)] == [
        ("trained-02", Reason.GROUP_COMPLETE),
        ("evicted-01", Reason.GROUP_EVICTED),
    ]
    assert len(buffer) == 0


async def test_a_filtered_trajectory_leaves_and_its_group_waits_for_another() -> None:
    buffer, log = make()
    put_group(buffer, "g1", 0, 0)
    assert buffer.drop("g1-01", Reason.FILTERED)
    assert not buffer.drop("g1-01", Reason.FILTERED)
    assert not buffer.drop("unknown", Reason.FILTERED)
    assert complete_groups(buffer) == 0
    assert not buffer.put(sample("g1", 1)), "a dropped trajectory does not come back"
    buffer.put(sample("g1", 2))
    assert (await buffer.get_batch(1, 0, 2)).trajectory_ids == ("g1-00", "g1-02")
    assert [(e.kind, e.subject, e.reason) for e in log.events] == [
        (EventKind.DROP, "g1-01", Reason.FILTERED)
    ]


async def test_a_group_can_be_evicted_by_name() -> None:
    buffer, log = make()
    put_group(buffer, "g1", 0, 0)
    assert buffer.evict("g1", Reason.GROUP_ABANDONED)
    assert not buffer.evict("g1", Reason.GROUP_ABANDONED)
    assert {e.subject for e in log.of(EventKind.EVICT)} == {"g1-00", "g1-01"}
    assert len(buffer) == 0


async def test_what_is_remembered_is_bounded() -> None:
    buffer, _ = make(memory=10)
    cursor = 0
    for step in range(1, 201):
        put_group(buffer, f"g{step}", 0, 0)
        await buffer.get_batch(step, 0, 2)
        cursor, _ = await buffer.changes(cursor)
    assert buffer.knows("g200-01")
    assert not buffer.knows("g1-00")
    assert len(buffer) == 0


async def test_a_buffer_goes_on_from_the_tables() -> None:
    buffer, log = make()
    buffer.restore(
        [sample("g2", 0), sample("g2", 1), sample("g3", 0)],
        batches=[batch_of(1, "g1")],
        known=["g1-00", "g1-01"],
        closed={"g1": Reason.GROUP_COMPLETE},
    )
    assert not buffer.put(sample("g1", 0)), "was committed before"
    assert not buffer.put(sample("g2", 1)), "was committed before"
    buffer.put(sample("g1", 2))
    assert [e.subject for e in log.of(EventKind.DROP)] == ["g1-02"]
    assert (await buffer.get_batch(2, 1, 2)).group_ids == ("g2", "g2")
    assert (await buffer.get_batch(1, 0, 2)).group_ids == ("g1", "g1")
    changes = await changes_of(buffer)
    assert sum(change.committed is not None for change in changes) == 1, "only what is new"


async def test_a_restored_buffer_repeats_what_its_scheduler_may_have_missed() -> None:
    buffer, _ = make()
    missed = (Change(committed=sample("g1", 0)), Change(consumed="g0"))
    buffer.restore([sample("g1", 0)], changes=missed)
    assert await changes_of(buffer) == missed


async def test_what_a_filter_refuses_never_counts_as_a_member() -> None:
    """Found by the fuzzer (seed 52): the group was complete for a moment, and a window moved on."""
    events = EventLog()
    buffer = SampleBuffer(StalenessPolicy(1), 1, events)
    refused = sample("g00000000", 0)
    assert buffer.put(refused, Reason.FILTERED)
    assert not buffer.put(refused)
    assert len(buffer) == 0
    _, (committed, dropped) = await buffer.changes(0)
    assert committed.committed is not None
    assert committed.committed.filtered
    assert dropped.dropped == (refused.trajectory_id, Reason.FILTERED)
    assert [event.reason for event in events.of(EventKind.DROP)] == [Reason.FILTERED]


async def test_the_question_of_one_who_died_forms_no_batch_under_an_older_version() -> None:
    """Found by the fuzzer (seed 3628): a controller started over under a newer version."""
    buffer = SampleBuffer(StalenessPolicy(0), 1, EventLog())
    dead = asyncio.ensure_future(buffer.get_batch(2, 0, 1))
    await asyncio.sleep(1)
    restarted = asyncio.ensure_future(buffer.get_batch(2, 1, 1))
    await asyncio.sleep(1)
    buffer.put(sample("g00000000", 0, start=0))
    buffer.put(sample("g00000001", 0, start=1))
    batch = await restarted
    assert batch == await dead
    assert (batch.policy_version, batch.group_ids) == (1, ("g00000001",))

"""The whole control plane under virtual time, with faults, over many seeds.

Only engines, environments, the network and the trainer are simulated; every decision is made by
the classes that run in production.
"""

from itertools import accumulate

import pytest

from rollart_flow.control.intake import group_cursor
from rollart_flow.control.schedules import (
    Schedule,
    areal,
    one_off,
    rollart,
    staged,
    sync,
    sync_plus,
    window,
)
from rollart_flow.types import Outcome
from tests.control.checks import check, check_all_have_rows
from tests.control.cluster import Faults, Record, settings_of, simulate
from tests.control.simulated import EnvironmentFaults

STEPS = 6
SCHEDULES = [
    sync(),
    sync_plus(),
    one_off(),
    rollart(0.5),
    rollart(1),
    rollart(2),
    areal(1),
    window(6),
    staged(2, 3, 2),
    rollart(1).switched(queue_scheduling=False, prompt_replication=False),
]
BROKEN_ENVIRONMENTS = EnvironmentFaults(raises=0.03, hangs=0.01, nonsense=0.02)
STORM = Faults(lost=0.1, repeated=0.1, environment=BROKEN_ENVIRONMENTS, hosts=2, engines=2)
RESTARTS = Faults(
    lost=0.1,
    repeated=0.1,
    environment=BROKEN_ENVIRONMENTS,
    hosts=1,
    engines=1,
    coordinators=3,
    buffers=3,
)

all_schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)


@pytest.mark.parametrize("seed", range(5))
@all_schedules
def test_a_calm_run(schedule: Schedule, seed: int) -> None:
    record = simulate(schedule, seed=seed, steps=STEPS)
    check(record, schedule, steps=STEPS)
    check_all_have_rows(record)
    limit = schedule.bound.capacity(16) // 4
    assert record.most_credits <= limit
    assert record.largest_buffer <= 2 * limit * 4
    lost = {Outcome.FAILED, Outcome.TIMED_OUT}
    assert not any(row.outcome in lost for row in record.rows.values())


@pytest.mark.parametrize("seed", range(12))
@all_schedules
def test_messages_hosts_engines_and_environments_fail(schedule: Schedule, seed: int) -> None:
    record = simulate(schedule, seed=seed, steps=STEPS, faults=STORM)
    check(record, schedule, steps=STEPS)
    check_all_have_rows(record)
    assert record.most_credits <= schedule.bound.capacity(16) // 4


@pytest.mark.parametrize("seed", range(4))
@all_schedules
def test_redundant_rollouts(schedule: Schedule, seed: int) -> None:
    settings = settings_of(redundancy=2, extra_groups=2)
    record = simulate(schedule, seed=seed, steps=STEPS, faults=STORM, settings=settings)
    check(record, schedule, steps=STEPS)
    check_all_have_rows(record)
    assert record.most_credits <= schedule.bound.capacity(16) // 4 + 2


@pytest.mark.parametrize("seed", range(8))
@all_schedules
def test_coordinator_and_buffer_die_and_start_over(schedule: Schedule, seed: int) -> None:
    record = simulate(schedule, seed=seed, steps=STEPS, faults=RESTARTS)
    check(record, schedule, steps=STEPS)
    check_all_have_rows(record)


@pytest.mark.parametrize("seed", range(8))
@all_schedules
def test_everything_dies_and_the_run_is_resumed(schedule: Schedule, seed: int) -> None:
    """What a resume gets is the record: rows, events, batches, published versions."""
    record = Record()
    for life, killed_after_s in enumerate([3.0 + seed, 5.0, None]):
        simulate(
            schedule,
            seed=100 * life + seed,
            steps=STEPS,
            faults=STORM,
            record=record,
            killed_after_s=killed_after_s,
        )
    check(record, schedule, steps=STEPS)


def test_a_calm_synchronous_run_wastes_nothing() -> None:
    """ROLL Flash section 4.3: what would violate the bound is never generated."""
    for seed in range(10):
        record = simulate(sync_plus(), seed=seed, steps=STEPS)
        assert len(record.rows) == STEPS * 16


def test_areal_aborts_nothing_for_its_age() -> None:
    ages = set()
    for seed in range(5):
        record = simulate(areal(1), seed=seed, steps=STEPS, faults=STORM)
        assert all(row.outcome is not Outcome.STALE for row in record.rows.values())
        ages |= {age for batch in record.batches.values() for age in batch.staleness}
    assert max(ages) > 1, "a trajectory may grow older than alpha once it has started"


def test_a_window_keeps_the_fast_from_overtaking_the_slow() -> None:
    width = 4
    for seed in range(5):
        record = simulate(window(width, alpha=2), seed=seed, steps=STEPS)
        check(record, window(width, alpha=2), steps=STEPS)
        assert widest_overlap(record) <= width
    free = [simulate(areal(2), seed=seed, steps=STEPS) for seed in range(5)]
    assert max(widest_overlap(record) for record in free) > width
    broken = [line for r in free for line in window(1).violations(r.batches.values())]
    assert any("was overtaken by" in line for line in broken)


def test_one_off_trains_on_nothing_that_spans_two_versions() -> None:
    for seed in range(5):
        record = simulate(one_off(), seed=seed, steps=STEPS)
        for batch in record.batches.values():
            rows = [record.rows[t] for t in batch.trajectory_ids]
            assert {row.policy_version_start for row in rows} == {batch.policy_version}
            assert {row.policy_version_end for row in rows} == {batch.policy_version}
        assert len(record.rows) == STEPS * 16, "nothing is generated in vain"


def test_each_freedom_makes_a_run_shorter() -> None:
    """ROLLART section 7.2: Sync+ over Sync, One-off over Sync+, rollart over One-off."""

    def seconds(schedule: Schedule) -> float:
        return sum(simulate(schedule, seed=s, steps=STEPS).seconds for s in range(6))

    took = [seconds(schedule) for schedule in (sync(), sync_plus(), one_off(), rollart(1))]
    assert took == sorted(took, reverse=True)
    assert took[-1] < 0.8 * took[1]


def test_batch_rollout_and_narrow_stages_make_a_run_longer() -> None:
    """ROLL Flash section 5.1.1: the longest response gates what is scored beside it."""

    def seconds(schedule: Schedule) -> float:
        return sum(simulate(schedule, seed=s, steps=STEPS).seconds for s in range(4))

    free = seconds(rollart(1))
    assert seconds(rollart(1).switched(queue_scheduling=False)) > 1.1 * free
    assert seconds(staged(8, 8, 16)) < 1.1 * free
    assert seconds(staged(1, 8, 16)) > seconds(staged(8, 8, 16))
    assert seconds(staged(8, 8, 1)) > 1.1 * free


def test_without_prompt_replication_a_group_is_decoded_by_one_worker() -> None:
    """ROLL Flash section 5.1.2. Its attempts run on three hosts, which do not know each other."""

    def workers(schedule: Schedule) -> dict[str, set[str]]:
        by_group: dict[str, set[str]] = {}
        for row in simulate(schedule, seed=1, steps=STEPS).rows.values():
            by_group.setdefault(row.group_id, set()).update(turn.worker for turn in row.turns)
        return by_group

    together = workers(rollart(1).switched(prompt_replication=False))
    assert all(len(names) <= 1 for names in together.values())
    assert len(set().union(*together.values())) == 3
    assert any(len(names) > 1 for names in workers(rollart(1)).values())


def test_a_fractional_alpha_caps_what_is_in_flight() -> None:
    """ROLL Flash section 4.3: (1 + alpha) x batch, here of 8 in groups of 4."""
    settings = settings_of(batch_size=8)

    def most(alpha: float) -> int:
        records = [
            simulate(rollart(alpha), seed=seed, steps=STEPS, settings=settings) for seed in range(5)
        ]
        assert max(r.most_credits for r in records) <= (1 + alpha) * 8 // 4
        return max(most_at_once(record) for record in records)

    assert 8 < most(0.5) <= 12 < most(1) <= 16


def most_at_once(record: Record) -> int:
    """Most attempts that ran side by side."""
    begun = [(row.created_at, 1) for row in record.rows.values()]
    ended = [(row.finished_at, -1) for row in record.rows.values()]
    return max(accumulate(change for _, change in sorted(begun + ended)))


def widest_overlap(record: Record) -> int:
    """Largest distance in the order of admission between trained groups that ran side by side."""
    trained = {g for batch in record.batches.values() for g in batch.group_ids}
    good = [r for r in record.rows.values() if r.group_id in trained]
    started = {g: min(r.created_at for r in good if r.group_id == g) for g in trained}
    members = {t for batch in record.batches.values() for t in batch.trajectory_ids}
    ended = {
        g: max(r.finished_at for r in good if r.group_id == g and r.trajectory_id in members)
        for g in trained
    }
    return max(
        group_cursor(late) - group_cursor(early)
        for early in trained
        for late in trained
        if started[late] < ended[early]
    )


def test_a_run_is_a_function_of_its_seed() -> None:
    def story(seed: int) -> tuple[object, ...]:
        record = simulate(rollart(1), seed=seed, steps=STEPS, faults=RESTARTS)
        return record.batches, list(record.rows.values()), record.events.events, record.seconds

    assert story(5) == story(5)
    assert story(5) != story(6)

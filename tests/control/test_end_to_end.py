"""Whole runs of the control plane under virtual time: what each schedule is for.

Only engines, environments, rewards, weights, tables and messages are simulated; every decision is
made by the classes that run in production. Faults over many seeds are in tests/simulation.
"""

from dataclasses import replace
from functools import cache
from itertools import accumulate

import pytest

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import (
    areal,
    one_off,
    rollart,
    staged,
    sync,
    sync_plus,
    window,
)
from rollart_flow.types import Outcome
from tests.dst import Faults, Kill, Plan, Target, simulate
from tests.dst.tables import Tables

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
FAULTS = Faults(
    message_lost=0.1,
    message_repeated=0.1,
    environment_raises=0.03,
    environment_hangs=0.01,
    environment_nonsense=0.02,
)
STORM = Plan(
    steps=STEPS,
    redundancy=2,
    extra_groups=1,
    faults=FAULTS,
    kills=tuple(Kill(2.0 * place, target, 0.1) for place, target in enumerate(Target, 1)),
)

all_schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.name)


@cache
def simulated(plan: Plan) -> tuple[Tables, float]:
    """The tables that a run leaves, for tests that read them, and its seconds."""
    result = simulate(plan)
    return result.tables, result.log.now_s


def run(schedule: Schedule, seed: int, plan: Plan | None = None) -> Tables:
    """The tables that a run leaves; calm unless a plan says otherwise."""
    return simulated(replace(plan or Plan(steps=STEPS), schedule=schedule, seed=seed))[0]


def seconds(schedule: Schedule, seeds: int) -> float:
    """Seconds of calm runs together."""
    plan = Plan(steps=STEPS, schedule=schedule)
    return sum(simulated(replace(plan, seed=seed))[1] for seed in range(seeds))


@all_schedules
def test_in_a_calm_run_no_attempt_is_lost(schedule: Schedule) -> None:
    lost = {Outcome.FAILED, Outcome.TIMED_OUT}
    rows = run(schedule, seed=0).rows.values()
    assert not any(row.outcome in lost for row in rows)


@pytest.mark.parametrize("seed", range(2))
@all_schedules
def test_every_promise_is_kept_in_a_storm(schedule: Schedule, seed: int) -> None:
    """Larger batches and longer runs than the fuzzer's; its monitor watches these too."""
    assert run(schedule, seed, STORM).trained == list(range(1, STEPS + 1))


def test_a_calm_synchronous_run_wastes_nothing() -> None:
    """ROLL Flash section 4.3: what would violate the bound is never generated."""
    for seed in range(5):
        record = run(sync_plus(), seed)
        assert len(record.rows) == STEPS * 16


def test_areal_aborts_nothing_for_its_age() -> None:
    ages = set()
    for seed in range(5):
        record = run(areal(1), seed, Plan(steps=STEPS, faults=FAULTS))
        assert all(row.outcome is not Outcome.STALE for row in record.rows.values())
        ages |= {age for batch in record.batches.values() for age in batch.staleness}
    assert max(ages) > 1, "a trajectory may grow older than alpha once it has started"


def test_a_window_keeps_the_fast_from_overtaking_the_slow() -> None:
    width = 4
    for seed in range(5):
        record = run(window(width, alpha=2), seed)
        assert widest_overlap(record) <= width
    free = [run(areal(2), seed) for seed in range(5)]
    assert max(widest_overlap(record) for record in free) > width
    broken = [line for r in free for line in window(1).violations(r.batches.values())]
    assert any("was overtaken by" in line for line in broken)


def test_one_off_trains_on_nothing_that_spans_two_versions() -> None:
    for seed in range(5):
        record = run(one_off(), seed)
        for batch in record.batches.values():
            rows = [record.rows[t] for t in batch.trajectory_ids]
            assert {row.policy_version_start for row in rows} == {batch.policy_version}
            assert {row.policy_version_end for row in rows} == {batch.policy_version}
        assert len(record.rows) == STEPS * 16, "nothing is generated in vain"


def test_each_freedom_makes_a_run_shorter() -> None:
    """ROLLART section 7.2: Sync+ over Sync, One-off over Sync+, rollart over One-off."""
    took = [seconds(schedule, 6) for schedule in (sync(), sync_plus(), one_off(), rollart(1))]
    assert took == sorted(took, reverse=True)
    assert took[-1] < 0.8 * took[1]


def test_batch_rollout_and_narrow_stages_make_a_run_longer() -> None:
    """ROLL Flash section 5.1.1: the longest response gates what is scored beside it."""
    free = seconds(rollart(1), 8)
    assert seconds(rollart(1).switched(queue_scheduling=False), 8) > 1.04 * free
    assert seconds(staged(8, 8, 16), 8) < 1.1 * free
    assert seconds(staged(1, 8, 16), 32) > 1.02 * seconds(staged(8, 8, 16), 32)
    assert seconds(staged(8, 8, 1), 8) > 1.02 * free


def test_without_prompt_replication_a_group_is_decoded_by_one_worker() -> None:
    """ROLL Flash section 5.1.2. Its attempts run on three hosts, which do not know each other."""

    def workers(schedule: Schedule) -> dict[str, set[str]]:
        by_group: dict[str, set[str]] = {}
        for row in run(schedule, seed=1).rows.values():
            by_group.setdefault(row.group_id, set()).update(turn.worker for turn in row.turns)
        return by_group

    together = workers(rollart(1).switched(prompt_replication=False))
    assert all(len(names) <= 1 for names in together.values())
    assert len(set().union(*together.values())) == 3
    assert any(len(names) > 1 for names in workers(rollart(1)).values())


def test_a_fractional_alpha_caps_what_is_in_flight() -> None:
    """ROLL Flash section 4.3: (1 + alpha) x batch, here of 8 in groups of 4."""
    plan = Plan(steps=STEPS, groups=2)

    def most(alpha: float) -> int:
        return max(most_at_once(run(rollart(alpha), seed, plan)) for seed in range(5))

    assert 8 < most(0.5) <= 12 < most(1) <= 16


def most_at_once(record: Tables) -> int:
    """Most attempts that ran side by side, without those that were evicted: whoever evicts one
    gives its place away at once, and it ends some milliseconds later."""
    kept = [row for row in record.rows.values() if row.outcome is not Outcome.STALE]
    begun = [(row.created_at, 1) for row in kept]
    ended = [(row.finished_at, -1) for row in kept]
    return max(accumulate(change for _, change in sorted(begun + ended)))


def widest_overlap(record: Tables) -> int:
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

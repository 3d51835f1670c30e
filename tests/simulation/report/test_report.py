"""Reports: their figures are consistent."""

from collections import Counter
from dataclasses import replace

import pytest

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import areal, one_off, rollart, rollart_plus, sync_plus
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.hardware import H800, QWEN3_8B, QWEN25_7B, Roofline
from rollart_flow.simulation.latencies import FixedLatency
from rollart_flow.simulation.report.report import report
from rollart_flow.simulation.scenario import Dedicated, Pool, Scenario, Serverless
from rollart_flow.simulation.transfers import MOONCAKE
from rollart_flow.simulation.workloads import GEM_GAME, GEM_MATH, WEB
from rollart_flow.types import Reason
from tests.simulation.scenarios import EVERY, ONE_POOL, TWO_POOLS

CASES = [(scenario, schedule) for scenario in (ONE_POOL, TWO_POOLS) for schedule in EVERY]


@pytest.mark.parametrize(
    ("scenario", "schedule"), CASES, ids=[f"{a.name}-{b.name}" for a, b in CASES]
)
def test_figures_fit_together(scenario: Scenario, schedule: Schedule) -> None:
    record = simulate(scenario, schedule, seed=1, steps=3)
    found = report(record, scenario, schedule, 1, warmup=1)
    assert found.steps == 2
    window_s = record.steps[-1].ended - record.steps[0].ended
    assert found.step_s == pytest.approx(window_s / 2)

    for shares in found.utilization.values():
        parts = shares.busy, shares.suspended, shares.idle
        assert all(0 <= part <= 1 for part in parts)
        assert sum(parts) == pytest.approx(1.0)
    assert set(found.utilization) == {p.device.name for p in scenario.rollout} | {"training"}

    trained = [t for step in (2, 3) for t in record.batches[step].trajectory_ids]
    tokens = sum(record.attempts[t].tokens for t in trained)
    assert found.throughput * window_s == pytest.approx(tokens)
    assert sum(found.staleness.values()) == len(trained)
    assert found.staleness_max == max(found.staleness)

    training_s = sum(times.trained - times.formed for times in record.steps[1:]) / 2
    assert sum(found.bubbles_s.values()) + training_s == pytest.approx(found.step_s)

    total = sum(record.admitted.values())
    weighted = [found.represented[d] * record.admitted[d] / total for d in record.admitted]
    assert sum(weighted) == pytest.approx(1.0)
    assert found.wasted_fraction == pytest.approx(sum(found.wasted.values()))
    assert found.reward_utilization is None


def test_waste_is_the_sampled_tokens_that_no_step_trained_on() -> None:
    spare = replace(ONE_POOL, redundancy=2)
    record = simulate(spare, sync_plus(), steps=4)
    found = report(record, spare, sync_plus(), 0)
    trained = {t for batch in record.batches.values() for t in batch.trajectory_ids}
    used = sum(record.attempts[t].sampled_tokens for t in trained)
    drawn = Counter[str]()
    for attempt in record.attempts.values():
        if attempt.trajectory_id not in trained:
            reason = record.left.get(attempt.trajectory_id, attempt.reason)
            drawn[str(reason)] += attempt.sampled_tokens
    surplus = str(Reason.GROUP_COMPLETE)
    assert found.wasted[surplus] == pytest.approx(
        drawn[surplus] / (used + drawn[surplus]), rel=0.05
    )
    assert 0 < found.wasted_fraction < 1


def test_nothing_is_wasted_where_nothing_is_thrown_away() -> None:
    for schedule in (sync_plus(), one_off(), areal(1), rollart_plus(1)):
        reliable = replace(ONE_POOL, domains=(replace(GEM_MATH, failure=0.0),))
        record = simulate(reliable, schedule, steps=4)
        assert report(record, reliable, schedule, 0).wasted == {}


def test_a_bound_that_slow_attempts_do_not_meet_leaves_them_out() -> None:
    """rollart drops the slowest, a synchronous schedule trains on all."""
    rollart_s, sync_s = (
        report(simulate(ONE_POOL, schedule, steps=6), ONE_POOL, schedule, 0)
        for schedule in (rollart(1), sync_plus())
    )
    assert sync_s.slow_represented == pytest.approx(1.0)
    assert rollart_s.slow_represented < 1.0
    assert rollart_s.step_s < 0.6 * sync_s.step_s


def test_domains_of_a_synchronous_run_are_trained_on_as_they_are_asked() -> None:
    record = simulate(TWO_POOLS, sync_plus(), steps=4)
    found = report(record, TWO_POOLS, sync_plus(), 0)
    assert found.represented == pytest.approx({"gem-game": 1.0, "web": 1.0})


def test_fewer_steps_than_the_warm_up_count_all_but_the_first() -> None:
    record = simulate(ONE_POOL, sync_plus(), steps=2)
    found = report(record, ONE_POOL, sync_plus(), 0)
    assert found.steps == 1
    whole = report(record, ONE_POOL, sync_plus(), 0, warmup=0)
    assert whole.steps == 2
    assert whole.step_s == pytest.approx(record.steps[-1].ended / 2)


def test_hidden_and_exposed_transfers_are_reported_apart() -> None:
    """A pull delays a step as far as no rollout hides it, a push unless it is overlapped."""
    record = simulate(TWO_POOLS, rollart(1), steps=4)
    found = report(record, TWO_POOLS, rollart(1), 0)
    assert found.exposed_pull_s == pytest.approx(MOONCAKE.exposed_s(QWEN3_8B, 1))
    assert found.push_s == pytest.approx(MOONCAKE.push_s(QWEN3_8B))
    beside = simulate(TWO_POOLS, rollart_plus(1), steps=4)
    assert report(beside, TWO_POOLS, rollart_plus(1), 0).push_s == 0


@pytest.mark.parametrize("serverless", [True, False])
def test_a_judge_is_utilized_as_far_as_it_works_while_it_is_paid(serverless: bool) -> None:
    """ROLLART section 7.3, R3: 6% of devices of its own, 88% of serverless ones; with as few calls
    as here, cold starts take more of it."""
    judge = Roofline(QWEN25_7B, H800)
    reward = Serverless(judge) if serverless else Dedicated(judge, 4)
    judged = replace(ONE_POOL, reward=reward)
    utilization = report(
        simulate(judged, sync_plus(), steps=3), judged, sync_plus(), 0
    ).reward_utilization
    assert utilization is not None
    assert (0.3 < utilization <= 1) if serverless else (0 < utilization < 0.1)


def test_pools_that_have_nothing_to_do_are_idle() -> None:
    """Environments that take very long leave the devices idle, and training waits."""
    slow = replace(WEB, step_s=FixedLatency(60.0), turns=FixedLatency(5))
    scenario = replace(ONE_POOL, domains=(slow,))
    found = report(simulate(scenario, sync_plus(), steps=3), scenario, sync_plus(), 0)
    assert found.utilization["H800"].idle > 0.9
    assert found.bubbles_s["batch and weights"] > 250
    busy = replace(ONE_POOL, domains=(GEM_GAME,), rollout=(Pool(H800, 1),), batch_size=64)
    found = report(simulate(busy, rollart(2), steps=6), busy, rollart(2), 0)
    assert found.utilization["H800"].busy > 0.8

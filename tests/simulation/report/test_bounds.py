"""Lower bounds: no schedule beats them, and each is nearly reached where it should be."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import areal, one_off, rollart, rollart_plus, sync_plus
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B, Roofline, TrainingCost
from rollart_flow.simulation.latencies import FixedLatency, LatencyMixture, Uniform
from rollart_flow.simulation.record import Record
from rollart_flow.simulation.report.bounds import StepTimeBound, bound, chain_s
from rollart_flow.simulation.report.paths import path_s
from rollart_flow.simulation.scenario import Pool, PrefillDecode, Scenario
from rollart_flow.simulation.transfers import MOONCAKE
from rollart_flow.simulation.workloads import FROZEN_LAKE, GEM_GAME, WEB, Script, ScriptedTurn
from tests.simulation.scenarios import EVERY, ONE_POOL, TWO_POOLS

ROUNDING = 1.01


def step_s(record: Record, warmup: int = 0) -> float:
    """Mean step time after the warm-up."""
    began = record.steps[warmup - 1].ended if warmup else 0.0
    return (record.steps[-1].ended - began) / (len(record.steps) - warmup)


def assert_not_beaten(scenario: Scenario, schedule: Schedule, seed: int, steps: int) -> None:
    """Assert the bound from the first step on, and after a warm-up."""
    record = simulate(scenario, schedule, seed=seed, steps=steps)
    for warmup in (0, steps - 2):
        limit = bound(record, scenario, schedule, warmup=warmup)
        assert min(limit.rollout_s, limit.training_s, limit.chain_s) > 0 or warmup
        assert limit.step_s <= ROUNDING * step_s(record, warmup), (seed, warmup, limit)


@pytest.mark.parametrize("scenario", [ONE_POOL, TWO_POOLS], ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("schedule", EVERY, ids=lambda schedule: schedule.name)
def test_no_schedule_beats_the_bound(schedule: Schedule, scenario: Scenario) -> None:
    for seed in range(3 if scenario is ONE_POOL else 2):
        assert_not_beaten(scenario, schedule, seed, steps=3)


PREFILL_HEAVY = replace(
    FROZEN_LAKE,
    turns=Uniform(4, 10),
    observation=FixedLatency(600),
    response=FixedLatency(8),
    step_s=FixedLatency(0.02),
    reset_s=FixedLatency(0.0),
)
OTHERS = {
    "shared": replace(ONE_POOL, rollout=(), shared=True),
    "redundant": replace(ONE_POOL, rollout=(Pool(H800, 1),), redundancy=4, extra_groups=8),
    "disaggregated": replace(
        ONE_POOL,
        domains=(WEB,),
        rollout=(),
        disaggregated=PrefillDecode(Pool(H800, 2), Pool(H20, 2), degree=1),
    ),
    "three pools": replace(ONE_POOL, rollout=(Pool(H800, 1), Pool(H20, 1)), sliding=2),
    "prefill": replace(ONE_POOL, domains=(PREFILL_HEAVY,), rollout=(Pool(H20, 1),)),
}


@pytest.mark.parametrize(
    "schedule",
    [rollart(1), rollart_plus(1), areal(1), sync_plus()],
    ids=lambda schedule: schedule.name,
)
@pytest.mark.parametrize("scenario", OTHERS.values(), ids=OTHERS)
def test_no_hardware_beats_it_either(scenario: Scenario, schedule: Schedule) -> None:
    assert_not_beaten(scenario, schedule, seed=0, steps=3)


def test_devices_that_training_lends_count_for_the_rollout() -> None:
    """With one own device and sixteen lent ones, the lent ones do most of the work."""
    long = replace(GEM_GAME, response=FixedLatency(3_000), task_spread=0.0)
    few = replace(ONE_POOL, domains=(long,), rollout=(Pool(H800, 1),), training=Pool(H800, 16))
    lent = replace(few, batch_size=256, sliding=16)
    record = simulate(lent, sync_plus(), steps=1)
    with_them, without = (
        bound(record, scenario, sync_plus()) for scenario in (lent, replace(lent, sliding=0))
    )
    assert with_them.step_s <= step_s(record) < without.step_s


def test_a_schedule_that_aborts_nothing_may_let_the_longest_take_many_steps() -> None:
    """One attempt in thirty takes 40 s, the others 1 s: training goes on with complete groups."""
    response = LatencyMixture(((0.97, FixedLatency(100)), (0.03, FixedLatency(6_000))))
    outliers = replace(GEM_GAME, response=response, task_spread=0.0)
    cost = TrainingCost(QWEN3_8B, H800, fixed_s=0.3)
    scenario = replace(ONE_POOL, domains=(outliers,), batch_size=16, group_size=1)
    scenario = replace(scenario, training_cost=cost)
    record = simulate(scenario, areal(1), steps=60)
    limit = bound(record, scenario, areal(1))
    chains = [
        max(chain_s(record.attempts[t].script, scenario) for t in batch.trajectory_ids)
        for batch in record.batches.values()
    ]
    assert sum(chains) / 60 / 2 > step_s(record), "two versions are not what it may span"
    assert limit.step_s <= step_s(record)


def test_the_bound_is_nearly_reached_where_one_thing_is_scarce() -> None:
    """Within 20% if training is scarce, 10% for the longest chain, 15% for the devices."""
    training = replace(
        ONE_POOL,
        domains=(replace(GEM_GAME, response=FixedLatency(500), task_spread=0.0),),
        training=Pool(H800, 1),
    )
    found = simulate(training, rollart_plus(1), steps=8)
    limit = bound(found, training, rollart_plus(1), warmup=2)
    assert limit.step_s == pytest.approx(limit.training_s)
    assert limit.step_s > 0.8 * step_s(found, 2)
    roomy = replace(ONE_POOL, rollout=(Pool(H800, 16),))
    found = simulate(roomy, one_off(), steps=4)
    limit = bound(found, roomy, one_off())
    assert limit.step_s == limit.chain_s > 0.9 * step_s(found)
    packed = replace(
        ONE_POOL,
        domains=(replace(GEM_GAME, response=FixedLatency(2_000), task_spread=0.0),),
        rollout=(Pool(H800, 1),),
        batch_size=128,
        training=Pool(H800, 32),
    )
    found = simulate(packed, one_off(), steps=3)
    limit = bound(found, packed, one_off())
    assert limit.step_s == limit.rollout_s > 0.85 * step_s(found)


def test_training_adds_up_only_where_rollout_waits_for_it() -> None:
    parts = {"rollout_s": 3.0, "training_s": 5.0, "chain_s": 4.0, "push_s": 6.0, "cycle_s": 5.5}
    assert StepTimeBound(**parts, serial=True).step_s == 15.0
    assert StepTimeBound(**parts, serial=False).step_s == 6.0


def test_a_chain_is_an_attempt_alone_on_the_fastest_worker_without_its_reset() -> None:
    script = Script(100.0, (ScriptedTurn(1_000, 50, 2.0), ScriptedTurn(10, 1, 3.0)), 1.0, False)
    h20, h800 = Roofline(QWEN3_8B, H20), Roofline(QWEN3_8B, H800)
    alone = replace(ONE_POOL, rollout=(Pool(H20, 4),))
    expected = 5.0 + h20.prefill_s(1_000, 500) + h20.prefill_s(10, 1_055)
    expected += 49 * h20.decode_s(1, 1_025)
    assert chain_s(script, alone) == pytest.approx(expected, rel=1e-3)
    prompts = Script(0.0, (ScriptedTurn(20_000, 1, 0.0),), 1.0, False)
    assert chain_s(prompts, TWO_POOLS) == pytest.approx(h800.prefill_s(20_000, 10_000))


# What ROLL Flash promises, where its assumptions hold: a worker takes one sample at a time.


def least_of_all_choices(steps: list[tuple[int, int]], push: int, pause: int, alpha: int) -> int:
    """Time until the last step is trained: the least over every choice of the version that the
    engines serve at each batch, of the version that starts its longest trajectory, and of delays of
    the swaps."""
    every = list(product((0, 1), range(alpha + 1), (0, 4)))
    best = 1 << 30
    for choices in product(every, repeat=len(steps)):
        ended, served_since = [0], {0: 0}
        for step, ((training, chain), (behind, age, delay)) in enumerate(
            zip(steps, choices, strict=True), start=1
        ):
            newest, served = step - 1, max(0, step - 1 - behind)
            swap = served_since.get(newest, ended[newest] + push + delay + pause)
            if served == newest:
                served_since[newest] = swap
            first = max(0, served - age)
            chain += pause if first < served else 0
            begun = served_since[first]
            formed = max(ended[newest], begun + chain, swap if served == newest else 0)
            served_since[newest] = swap if served == newest else max(swap, formed + pause)
            ended.append(formed + training)
        best = min(best, ended[-1])
    return best


def test_no_choice_of_versions_beats_the_longest_path_and_one_attains_it() -> None:
    chance = Random(5)
    for alpha in (0, 1, 1, 1, 1, 1):
        steps = [(chance.randint(1, 9), chance.randint(0, 30)) for _ in range(4)]
        push, pause = chance.randint(0, 9), chance.randint(0, 4)
        oldest = (1.0 + alpha, 2.0 + alpha)
        found = path_s(steps, (), push, oldest, swap_s=pause)
        assert found == least_of_all_choices(steps, push, pause, alpha)


def test_attempts_that_had_begun_bound_the_path_by_what_was_left_of_them() -> None:
    steps, before, oldest = [(2.0, 5.0), (2.0, 5.0)], (-1.0, 0.0), (2.0, 3.0)
    free = path_s(steps, before, 1.0, oldest)
    assert path_s(steps, before, 1.0, oldest, (free - 4.0,)) == free, "they have ended by then"
    assert path_s(steps, before, 1.0, oldest, (20.0,)) == 24.0, "both trainings follow"
    assert path_s(steps, before, 1.0, oldest, (0.0, 20.0)) == 22.0


def test_rollart_plus_nearly_reaches_the_path_of_training_transfer_and_longest_attempt() -> None:
    """Engines have nothing to do, so that a step takes a third of one version's path."""
    idle = replace(WEB, turns=FixedLatency(10), step_s=FixedLatency(8.0), failure=0.0)
    slow = replace(ONE_POOL, domains=(idle,), training=Pool(H800, 2), transfer=MOONCAKE)
    found = simulate(slow, rollart_plus(1), steps=8)
    limit = bound(found, slow, rollart_plus(1), warmup=2)
    assert limit.step_s == limit.cycle_s > 1.1 * max(limit.chain_s, limit.training_s)
    assert step_s(found, 2) < 1.1 * limit.step_s

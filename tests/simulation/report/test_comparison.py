"""ROLL Flash's upper bounds hold for batches of independent samples."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_flow.control.schedule.schedules import rollart, sync_plus
from rollart_flow.simulation.hardware import H800, QWEN3_8B, EngineCosts, TrainingCost
from rollart_flow.simulation.report.comparison import propositions
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.transfers import INTRA_CLUSTER
from rollart_flow.simulation.workloads import GEM_MATH, Script, ScriptedTurn

TINY = Scenario(
    "queue",
    QWEN3_8B,
    (GEM_MATH,),
    (Pool(H800, 1),),
    Pool(H800, 1),
    batch_size=1_024,
    group_size=1,
    transfer=INTRA_CLUSTER,
)
"""So many samples that every slot of every worker is taken."""
SEQUENCES = EngineCosts().sequences


def waits(seconds: Sequence[float]) -> list[Script]:
    """Scripts that consist almost entirely of a wait."""
    return [Script(0.0, (ScriptedTurn(1, 1, s),), 1.0, False) for s in seconds]


def queue_s(seconds: Sequence[float], workers: int) -> float:
    """Time under queue scheduling: a free worker takes the next sample."""
    free = [0.0] * workers
    for s in seconds:
        heapq.heapreplace(free, free[0] + s)
    return max(free)


SAMPLES = st.lists(st.floats(0.1, 100.0), min_size=8, max_size=8)


@settings(max_examples=30)
@given(SAMPLES)
def test_synchronous_training_keeps_within_proposition_2_1(kinds: list[float]) -> None:
    """All devices generate, then all train (equation 8), in the worst order."""
    seconds = sorted(kinds * 128)
    promised = propositions(waits(seconds), TINY, sync_plus())
    workers = 2 * SEQUENCES
    training_s = TINY.cost.step_s([2] * 1_024, 2)
    assert queue_s(seconds, workers) + training_s <= promised.sync_s


@settings(max_examples=30)
@given(SAMPLES, st.sampled_from([1, 2, 3]))
def test_asynchronous_training_keeps_within_proposition_2_2(kinds: list[float], alpha: int) -> None:
    """(1 + alpha) batches are generated in one go; the time counts per batch (equations 7, 9)."""
    seconds = sorted(kinds * 128 * (1 + alpha))
    promised = propositions(waits(kinds * 128), TINY, rollart(alpha))
    generated = queue_s(seconds, SEQUENCES) / (1 + alpha)
    training_s = TINY.cost.step_s([2] * 1_024, 1)
    assert max(generated, training_s - TINY.cost.fixed_s) <= promised.async_s


def test_one_sample_of_many_bounds_a_batch_however_many_workers_there_are() -> None:
    """The longest sample is not divided among the workers."""
    promised = propositions(waits([1.0] * 1_023 + [500.0]), TINY, rollart(1))
    assert promised.async_s > 500.0 / 2


def test_the_best_share_makes_the_asynchronous_bound_least() -> None:
    """Equation 10: at beta* generation and training take the same."""
    scripts = waits([5.0, 20.0, 60.0, 8.0] * 256)
    cost = TrainingCost(QWEN3_8B, H800, fixed_s=12.0)
    splits = {}
    for devices in range(1, 8):
        scenario = replace(TINY, rollout=(Pool(H800, 8 - devices),), training=Pool(H800, devices))
        scenario = replace(scenario, training_cost=cost)
        splits[devices / 8] = propositions(scripts, scenario, rollart(1))
    (best,) = {round(found.best_share, 9) for found in splits.values()}
    assert 1 / 8 < best < 7 / 8
    least = min(splits, key=lambda share: splits[share].async_s)
    assert abs(least - best) < 1 / 8
    shares = sorted(splits)
    rising = [share for share in shares if share >= best]
    falling = [share for share in shares if share <= best]
    assert [splits[s].async_s for s in rising] == sorted(splits[s].async_s for s in rising)
    assert [splits[s].async_s for s in falling] == sorted(
        (splits[s].async_s for s in falling), reverse=True
    )

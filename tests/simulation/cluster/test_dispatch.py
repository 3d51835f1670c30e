"""Switches and stages of schedules hold in the simulated cluster too."""

from dataclasses import replace
from statistics import fmean

from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.control.schedule.schedules import rollart, staged, sync_plus
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.hardware import H800, QWEN3_8B
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import GEM_MATH

SCENARIO = Scenario(
    "few devices",
    QWEN3_8B,
    (GEM_MATH,),
    rollout=(Pool(H800, 8),),
    training=Pool(H800, 8),
    batch_size=64,
    group_size=8,
)


def step_s(schedule: Schedule, scenario: Scenario = SCENARIO) -> float:
    """Mean seconds of a step over a few seeds."""
    return fmean(simulate(scenario, schedule, seed=seed, steps=4).seconds / 4 for seed in range(3))


def test_prompt_replication_makes_a_step_shorter() -> None:
    """ROLL Flash section 5.1.2: two groups keep two of three workers busy, and one idle."""
    scenario = replace(SCENARIO, rollout=(Pool(H800, 3),), batch_size=256, group_size=128)
    free = step_s(sync_plus(), scenario)
    assert step_s(sync_plus().switched(prompt_replication=False), scenario) > 1.1 * free


def test_with_spare_attempts_queue_scheduling_makes_a_step_shorter() -> None:
    """ROLL Flash section 5.1.1: surplus attempts are not awaited."""
    scenario = replace(SCENARIO, redundancy=4)
    free = step_s(sync_plus(), scenario)
    assert step_s(sync_plus().switched(queue_scheduling=False), scenario) > 1.1 * free


def test_stages_hold_in_a_host_and_overlap() -> None:
    free = step_s(rollart(1))
    assert step_s(staged(64, 128, 64)) < 1.05 * free
    narrow = simulate(SCENARIO, staged(64, 16, 64), seed=0, steps=4)
    assert narrow.seconds / 4 > 1.5 * free

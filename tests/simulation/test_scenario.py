"""Scenarios: settings that do not fit together are refused, and sizes follow from the rest."""

from dataclasses import replace

import pytest

from rollart_flow.control.schedule.schedules import areal, rollart, sync_plus
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.hardware import (
    H20,
    H800,
    QWEN3_8B,
    QWEN3_32B,
    EngineCosts,
    Roofline,
    TrainingCost,
)
from rollart_flow.simulation.scenario import Outage, Pool, PrefillDecode, Scenario
from rollart_flow.simulation.workloads import GEM_MATH

SCENARIO = Scenario(
    "small", QWEN3_8B, (GEM_MATH,), (Pool(H800, 4),), Pool(H800, 8), batch_size=32, group_size=4
)


def test_no_devices_for_rollout_are_refused() -> None:
    with pytest.raises(SettingsError, match="scenario small: no devices for rollout"):
        replace(SCENARIO, rollout=())


def test_a_worker_without_room_for_one_trajectory_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsError, match=r"Qwen3-32B on 1 H800 .* 32768; raise tensor_parallel"):
        replace(SCENARIO, model=QWEN3_32B)
    replace(SCENARIO, model=QWEN3_32B, tensor_parallel=4)


def test_costs_of_a_class_without_devices_are_refused() -> None:
    with pytest.raises(SettingsError, match="costs has H100, but the devices are H800"):
        replace(SCENARIO, costs={"H100": EngineCosts(), "H800": EngineCosts()})


@pytest.mark.parametrize(
    "outage",
    [Outage(-1, 5), Outage(float("nan"), 5), Outage(0, 0), Outage(0, float("inf"))],
    ids=str,
)
def test_an_outage_has_a_beginning_and_an_end(outage: Outage) -> None:
    with pytest.raises(SettingsError, match="scenario small: an outage begins at"):
        replace(SCENARIO, outages=(outage,))


def test_an_outage_is_over_at_its_end_and_the_longer_of_two_counts() -> None:
    scenario = replace(SCENARIO, outages=(Outage(10, 5), Outage(12, 8), Outage(50, 1)))
    waits = {now: scenario.outage_s(now) for now in (0.0, 9.9, 10.0, 13.0, 19.0, 20.0, 50.5)}
    assert waits == {0: 0, 9.9: 0, 10: 5, 13: 7, 19: 1, 20: 0, 50.5: 0.5}


def test_devices_are_workers_without_a_rest() -> None:
    with pytest.raises(SettingsError, match="4 H800 cannot be divided into workers of 3"):
        replace(SCENARIO, tensor_parallel=3)


def test_batches_are_whole_groups() -> None:
    with pytest.raises(SettingsError):
        replace(SCENARIO, batch_size=30)


def test_workers_are_pools_over_the_tensor_parallel_degree() -> None:
    mixed = replace(SCENARIO, rollout=(Pool(H800, 4), Pool(H20, 8)), tensor_parallel=2)
    assert mixed.workers() == ((Roofline(QWEN3_8B, H800, 2), 2), (Roofline(QWEN3_8B, H20, 2), 4))


def test_where_devices_are_shared_those_of_training_serve_and_switching_costs() -> None:
    shared = replace(SCENARIO, rollout=(), shared=True)
    assert shared.workers() == ((Roofline(QWEN3_8B, H800), 8),)
    lengths = [4_000] * 32
    assert shared.training_s(lengths) == SCENARIO.training_s(lengths) + shared.switch_s


def test_disaggregated_prefill_takes_the_place_of_rollout() -> None:
    parts = PrefillDecode(Pool(H800, 4), Pool(H20, 8), degree=4)
    scenario = replace(SCENARIO, rollout=(), disaggregated=parts)
    assert scenario.workers() == ((Roofline(QWEN3_8B, H800, 4), 1), (Roofline(QWEN3_8B, H20, 4), 2))


def test_slots_are_the_attempts_that_the_schedule_allows_in_flight() -> None:
    assert SCENARIO.slots(sync_plus()) == 32
    assert SCENARIO.slots(rollart(1)) == SCENARIO.slots(areal(1)) == 64
    spare = replace(SCENARIO, redundancy=2, extra_groups=3)
    assert spare.slots(sync_plus()) == (8 + 3) * 6
    assert replace(spare, environments=7).slots(sync_plus()) == 7


def test_training_has_the_given_cost_or_the_arithmetic_of_the_model() -> None:
    assert SCENARIO.cost == TrainingCost(QWEN3_8B, H800)
    slow = TrainingCost(QWEN3_8B, H800, compute_share=0.1)
    lengths = [4_000] * 32
    priced = replace(SCENARIO, training_cost=slow, epochs=2)
    assert priced.training_s(lengths) == slow.step_s(lengths, 8, 2)

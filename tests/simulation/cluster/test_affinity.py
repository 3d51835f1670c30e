"""Hardware affinity that profilers find during a run (ROLLART section 9)."""

from dataclasses import replace

import pytest

from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.hardware import H20, H800, QWEN3_8B
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import FROZEN_LAKE, GEM_MATH

PAPER = {"frozenlake": "H800", "gem-math": "H20"}
"""ROLLART section 7.3."""
TWO_CLASSES = Scenario(
    "two classes",
    QWEN3_8B,
    (GEM_MATH, FROZEN_LAKE),
    (Pool(H20, 4), Pool(H800, 2)),
    Pool(H800, 2),
    batch_size=32,
    group_size=8,
    hw_affinity="auto",
)


@pytest.mark.parametrize(("seed", "h20"), [(0, 4), (1, 2)])
def test_the_mapping_of_the_paper_is_found_within_two_steps_and_stays(seed: int, h20: int) -> None:
    scenario = replace(TWO_CLASSES, rollout=(Pool(H20, h20), Pool(H800, 2)))
    record = simulate(scenario, rollart(1), seed=seed, steps=3)
    assert {each.domain: each.hardware for each in record.bindings} == PAPER
    assert len(record.bindings) == len(PAPER), "nothing is bound twice"
    assert max(each.at for each in record.bindings) < record.steps[1].ended


def test_two_hosts_with_profiles_of_their_own_agree() -> None:
    record = simulate(replace(TWO_CLASSES, batch_size=96), rollart(1), steps=2)
    assert len({attempt.host for attempt in record.attempts.values()}) == 2
    found = sorted((each.domain, each.hardware) for each in record.bindings)
    assert found == sorted([*PAPER.items()] * 2)


def test_the_affinity_found_is_faster_than_the_least_suitable_one() -> None:
    found, worst = (
        simulate(replace(TWO_CLASSES, hw_affinity=affinity), rollart(1), steps=3).seconds
        for affinity in ("auto", {"frozenlake": "H20", "default": "H800"})
    )
    assert found < worst


def test_another_word_is_refused() -> None:
    with pytest.raises(SettingsError, match="hw_affinity is 'fast', but must be a hardware class"):
        replace(TWO_CLASSES, hw_affinity="fast")  # type: ignore[arg-type]

"""Measurements of a stored run: series, and the groups of its workload."""

import pytest

from rollart_flow.simulation.measured import (
    MeasuredEngine,
    RecordedGroup,
    RecordedWorkload,
    Series,
    TokenCurve,
)
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.decoding import Job
from rollart_flow.simulation.workloads import Script, ScriptedTurn


def script(reward: float) -> Script:
    return Script(0.1, (ScriptedTurn(5, 2, 0.1),), reward, judged=False)


def test_a_series_keeps_its_order_from_a_place_that_the_seed_chooses() -> None:
    series = Series((1.0, 2.0, 3.0))
    played = series.play("seed")
    first = [next(played) for _ in range(6)]
    assert first[:3] == first[3:]
    assert sorted(first[:3]) == [1.0, 2.0, 3.0]
    assert first[1] == first[0] % 3 + 1


def test_attempts_that_a_group_has_not_recorded_are_of_its_domain() -> None:
    groups = [RecordedGroup("lake", (script(1.0),)), RecordedGroup("sums", (script(2.0),))]
    workload = RecordedWorkload(groups, 0)
    task, cursor = next(workload.tasks())
    group_id = f"g{cursor:08d}"
    own = workload.script(group_id, task.domain, 0)
    assert workload.script(group_id, task.domain, 5) == own


def test_a_curve_is_linear_between_its_points_and_beyond() -> None:
    curve = TokenCurve(((10.0, 1.0), (20.0, 3.0), (30.0, 4.0)))
    assert [curve.of(at) for at in (10, 15, 20, 25, 40)] == [1.0, 2.0, 3.0, 3.5, 5.0]
    assert curve.of(0) == 0.0, "never below 0"
    assert curve.times(2.0).of(25) == 7.0
    assert TokenCurve(((10.0, 1.0),)).of(99) == 1.0


def test_every_prompt_of_a_pass_takes_the_time_of_a_sequence() -> None:
    """A pass over three prompts is as long as the next one, in which the three sample again."""
    batch = ContinuousBatch(MeasuredEngine("CPU", 0.0, 0.0, pass_s=0.01, sequence_s=0.001))
    batch.suspend(0.0)
    for name in "abc":
        batch.submit(0.0, Job(name, 5, 2))
    batch.resume(0.0, 1)
    assert batch.next_event() == pytest.approx(0.013)
    batch.advance(0.0131)
    assert batch.next_event() == pytest.approx(0.026)

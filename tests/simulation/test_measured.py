"""Measurements of a stored run: series, and the groups of its workload."""

from rollart_flow.simulation.measured import RecordedGroup, RecordedWorkload, Series
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

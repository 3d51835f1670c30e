"""A prediction from a stored run: its own step time, and what other settings make of it.

The run is a real one of 24 steps under alpha 1 on two cores, of which `shrink` left what
predictions read.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rollart_flow.control.schedule.schedules import rollart, sync_plus
from rollart_flow.errors import SettingsError
from rollart_flow.simulation.cluster.simulated_cluster import simulate
from rollart_flow.simulation.report.report import Report, report
from rollart_flow.simulation.stored.fitting import measure
from rollart_flow.simulation.stored.recorded import Recorded, recorded_scenario
from rollart_flow.simulation.stored.tables import read_tables
from rollart_flow.store import open_run
from tests.runs import small_run

DATA = Path(__file__).parents[1] / "data" / "two-domains"


@cache
def recorded() -> Recorded:
    return recorded_scenario(open_run(DATA))


def predicted(run: Recorded, steps: int | None = None) -> Report:
    record = simulate(run.scenario, run.schedule, steps=steps or run.steps)
    return report(record, run.scenario, run.schedule, 0)


def test_the_runs_own_configuration_gives_its_measured_step_time() -> None:
    run = recorded()
    assert run.measured_step_s == pytest.approx(2.404, abs=0.001)
    assert predicted(run).step_s == pytest.approx(run.measured_step_s, rel=0.1)


def test_the_scenario_has_the_runs_own_settings() -> None:
    run = recorded()
    assert run.schedule.name == "rollart(alpha=1)"
    assert run.steps == 24
    assert (run.scenario.batch_size, run.scenario.group_size) == (128, 8)
    assert run.scenario.environments == 48


def test_without_overlap_a_step_takes_longer_as_the_real_run_did() -> None:
    """A step of the same pipeline took 2.92 s and 3.24 s under sync_plus, 2.40 s under alpha 1."""
    run = recorded()
    synchronous = predicted(run.changed(schedule=sync_plus()), steps=12)
    assert synchronous.step_s > 1.1 * run.measured_step_s
    assert synchronous.staleness_max == 0


def test_engines_and_launches_of_one_process_are_slowed_down_as_training_is() -> None:
    """Engines that were suspended all the time shared none with training: the assumed slowdown."""
    tables = read_tables(open_run(DATA).snapshot(), "two-domains", rollart(1), least_steps=3)
    end = float(tables.steps[-1].finished)
    apart = replace(
        tables,
        one_process=True,
        suspended=(np.array([0.0]), np.array([end])),
        steps=tuple(replace(step, train_cpu_s=step.train_s) for step in tables.steps),
    )
    found = measure(apart, None, limit=32, slots=48)
    assert found.training_stretch == pytest.approx(1.3 * 2.0 - 1)
    assert found.engine_stretch == found.launch_stretch == found.training_stretch


def test_fewer_environments_and_smaller_batches_show() -> None:
    run = recorded()
    own = predicted(run, steps=8).step_s
    assert predicted(run.changed(environments=8), steps=8).step_s > 1.2 * own
    assert predicted(run.changed(batch_size=64), steps=8).step_s < own


def test_redundant_attempts_cost_launches() -> None:
    run = recorded()
    more = predicted(run.changed(redundancy=4), steps=8)
    assert more.wasted_fraction > 0
    assert more.step_s > predicted(run, steps=8).step_s


def test_a_prediction_is_a_function_of_run_settings_and_seed() -> None:
    first, second = (
        simulate(run.scenario, run.schedule, seed=3, steps=4)
        for run in (recorded_scenario(open_run(DATA)), recorded())
    )
    assert first == second


def test_the_bound_is_below_the_prediction() -> None:
    own = predicted(recorded(), steps=8)
    assert own.bound.step_s < own.step_s


def test_changes_leave_the_original_as_it_was() -> None:
    run = recorded()
    changed = run.changed(alpha=2, engines=3, redundancy=1)
    assert changed.schedule.name == "rollart(alpha=2)"
    assert [count for _, count in changed.scenario.workers()] == [3]
    assert changed.scenario.redundancy == 1
    assert [count for _, count in run.scenario.workers()] == [1]
    assert run.changed() == run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engines": 0}, "engines is 0"),
        ({"environments": 0}, "environments is 0"),
        ({"batch_size": 60}, "multiple of group_size 8"),
        ({"alpha": -1.0}, "alpha is -1"),
        ({"alpha": 1, "schedule": sync_plus()}, "give one of them"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        recorded().changed(**changes)  # type: ignore[arg-type]


def test_two_steps_are_too_few() -> None:
    with pytest.raises(SettingsError, match="has 2 training steps, but a prediction needs 3") as e:
        recorded_scenario(open_run(DATA).as_of(step=2))
    assert "\n" not in str(e.value)


def test_a_run_without_its_settings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="run small has no tasks node in its settings"):
        recorded_scenario(small_run(tmp_path))

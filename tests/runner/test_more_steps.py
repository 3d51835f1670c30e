"""A finished run goes on to more steps, as if it had been made with them."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import SettingsError
from rollart_flow.replay import replay_step
from rollart_flow.store import Run, RunStatus, open_run
from tests.cli.shell import refused, rollart
from tests.copies import copied


def test_a_finished_run_trains_the_steps_that_are_missing(
    finished_run: Run, tmp_path: Path
) -> None:
    run = copied(finished_run, tmp_path / "small")
    before = run.steps.sort("step").collect()
    result = runner.resume(run.uri, steps=6, executor="inline")
    after = open_run(result.uri)
    steps = after.steps.sort("step").collect()
    assert result.status is RunStatus.FINISHED
    assert steps["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert steps.head(4).equals(before)
    ids = after.trajectories.select("trajectory_id").collect()["trajectory_id"]
    assert ids.n_unique() == ids.len()
    trained = after.batches.group_by("trajectory_id").len().select(pl.col("len").max()).collect()
    assert trained.item() == 1
    assert after.info.overrides["train.steps"] == "6"
    assert after.info.settings["nodes"]["train"]["steps"] == 6
    assert 6 in after.evaluations.select("policy_version").collect()["policy_version"]
    assert replay_step(after.uri, 6).equal


def test_fewer_steps_than_there_are_change_nothing(finished_run: Run, tmp_path: Path) -> None:
    run = copied(finished_run, tmp_path / "small")
    with pytest.raises(SettingsError, match="has trained 4 steps; give more"):
        runner.resume(run.uri, steps=4, executor="inline")
    assert open_run(run.uri).info == finished_run.info


def test_no_other_setting_can_be_changed(finished_run: Run) -> None:
    line = refused(rollart("resume", finished_run.path, "-s", "alpha=2"))
    assert line == "resume changes nothing but steps; `rollart fork` the run to change alpha"

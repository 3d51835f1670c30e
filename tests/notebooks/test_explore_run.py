"""The notebook runs on a small run, as a script and cell by cell."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.runs import BATCH_SIZE, small_run

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "explore_run.py"


def names_after(store: Path, notebook_file: Path = NOTEBOOK) -> Mapping[str, Any]:
    """What the cells define once they ran on the newest runs of a store."""
    spec = importlib.util.spec_from_file_location(notebook_file.stem, notebook_file)
    assert spec is not None
    assert spec.loader is not None
    notebook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLART_STORE", str(store))
        patch.setattr(sys, "argv", [str(notebook_file)])
        _, defined = notebook.app.run()
    return dict(defined)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The names after a run of several steps."""
    store = tmp_path_factory.mktemp("store")
    small_run(store, "older", steps=0)
    small_run(store)
    return names_after(store)


def test_it_opens_the_newest_run_of_the_store(names: Mapping[str, Any]) -> None:
    assert names["run"].info.name == "small"


def test_learning_curves_are_those_of_the_tables(names: Mapping[str, Any]) -> None:
    assert names["rewards"]["step"].to_list() == [1, 2, 3, 4]
    assert set(names["evaluations"]["metric"]) == {"success", "success_sampled"}
    assert names["success_chart"].to_dict()["mark"]["type"] == "line"


def test_staleness_and_lag_are_counted_over_all_batches(names: Mapping[str, Any]) -> None:
    number = names["pl"].col("trajectories").sum()
    counted = names["ages"].group_by("measure", "age").agg(number).rows()
    assert {(measure, age): count for measure, age, count in counted} == {
        ("staleness", 0): 24, ("staleness", 1): 8, ("lag", 0): 8, ("lag", 1): 16, ("lag", 2): 8,
    }  # fmt: skip


def test_the_timeline_has_no_gap_and_no_overlap(names: Mapping[str, Any]) -> None:
    timeline = names["timeline"]
    assert timeline["trajectory_id"].n_unique() == BATCH_SIZE
    for (_,), spans in timeline.group_by("trajectory_id"):
        assert spans["span"][0] == "reset"
        assert spans["start_s"][1:].to_list() == spans["end_s"][:-1].to_list()
        assert (spans["end_s"] >= spans["start_s"]).all()
    assert "wait in buffer" in timeline["span"].to_list()


def test_the_transcript_is_that_of_the_chosen_trajectory(names: Mapping[str, Any]) -> None:
    assert names["transcript"].startswith(names["trajectory_choice"].value)
    assert "turn 1" in names["transcript"]


def test_a_run_that_has_not_trained_yet_shows_what_it_has(tmp_path: Path) -> None:
    small_run(tmp_path, steps=0)
    names = names_after(tmp_path)
    assert names["summary"].steps == 0
    assert "timeline" not in names


def test_it_runs_as_a_script(tmp_path: Path) -> None:
    run = small_run(tmp_path, steps=1)
    done = subprocess.run(
        [sys.executable, str(NOTEBOOK), "--run", run.uri],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

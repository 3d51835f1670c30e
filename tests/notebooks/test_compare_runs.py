"""The notebook compares two runs, as a script and cell by cell."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.ui.demo.run import write_demo_run
from tests.notebooks.test_explore_run import ROOT, names_after

NOTEBOOK = ROOT / "notebooks" / "compare_runs.py"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    write_demo_run(folder, "fork", parent=write_demo_run(folder))
    return folder


@pytest.fixture(scope="module")
def names(store: Path) -> Mapping[str, Any]:
    return names_after(store, NOTEBOOK)


def test_it_opens_the_two_newest_runs_of_the_store(names: Mapping[str, Any]) -> None:
    assert sorted(names["names"]) == ["demo", "fork"]
    assert dict(names["figures"].select("run", "steps").iter_rows()) == {"demo": 6, "fork": 6}


def test_it_names_the_settings_that_differ(names: Mapping[str, Any]) -> None:
    found = set(names["differing"]["setting"])
    assert {"nodes.buffer.alpha", "forked from"} <= found
    assert "seed" not in found


def test_curves_have_the_steps_of_each_run(names: Mapping[str, Any]) -> None:
    steps = names["curves"].group_by("run").agg("step").sort("run")["step"].to_list()
    assert [sorted(each) for each in steps] == [[1, 2, 3, 4, 5, 6], [5, 6]]
    assert {chart.to_dict()["mark"]["type"] for chart in names["charts"]} == {"line"}


def test_it_runs_as_a_script(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(NOTEBOOK), "--runs", f"{store / 'demo'},{store / 'fork'}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""`rollart diff`: what two runs do not share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart_flow.store.info import read_info, write_info
from tests.cli.shell import refused, rollart
from tests.copies import FOLDERS, Rows, copied
from tests.runs import small_run


def diffed(store: Path) -> Any:
    """What the command says of the runs `one` and `two`, as JSON."""
    return json.loads(rollart("diff", "one", "two", "--store", str(store), "--json").out)


def test_equal_runs_are_equal(tmp_path: Path) -> None:
    small_run(tmp_path, "one")
    small_run(tmp_path, "two")
    found = diffed(tmp_path)
    assert (found["settings"], found["source"], found["step"]) == ([], [], [])
    assert (found["common_steps"], found["first_step"]) == (4, None)
    said = rollart("diff", "one", "two", "--store", str(tmp_path)).out
    assert "all 4 steps that both runs have are equal" in said
    assert "settings: equal" in said


def test_settings_source_and_results_stand_beside_each_other(tmp_path: Path) -> None:
    small_run(tmp_path, "one")
    other = small_run(tmp_path, "two", steps=2)
    settings = {"nodes": {"buffer": {"kind": "buffer", "alpha": 3}}}
    write_info(other.uri, replace(read_info(other.uri), settings=settings))
    (tmp_path / "two" / "pipeline.py").write_text('"""Another pipeline."""\n')
    found = diffed(tmp_path)
    differing = {each["name"]: (each["first"], each["second"]) for each in found["settings"]}
    assert differing["buffer.alpha"] == (1, 3)
    assert '+"""Another pipeline."""' in found["source"]
    results = {each["name"]: (each["first"], each["second"]) for each in found["results"]}
    assert results["steps"] == (4, 2)
    assert results["seconds"] == (8.0, 4.0)
    assert results["arithmetic success_sampled"] == (0.9375, 0.5)
    assert found["common_steps"] == 2


def test_the_first_step_with_other_weights_is_found(tmp_path: Path) -> None:
    one = small_run(tmp_path, "one")
    for folder in FOLDERS:
        (tmp_path / "one" / folder).mkdir(exist_ok=True)

    def changed(rows: Rows) -> Rows:
        return [r | {"fingerprint": "f" * 64} if r["step"] >= 3 else r for r in rows]

    copied(one, tmp_path / "two", {"steps": changed})
    found = diffed(tmp_path)
    assert found["first_step"] == 3
    assert [each["name"] for each in found["step"]] == ["fingerprint"]
    said = rollart("diff", "one", "two", "--store", str(tmp_path)).out
    assert "first step that differs: 3 of 4" in said


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    small_run(tmp_path, "one", steps=0)
    assert "no run 'none'" in refused(rollart("diff", "one", "none", "--store", str(tmp_path)))

"""`rollart redteam` on a stored run: a table for people, JSON for programs."""

import json
from pathlib import Path

import pytest

from tests.analysis.planted import PLANTED, planted_run
from tests.cli.shell import refused, rollart
from tests.runs import small_run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run that has something to see, and one that has not."""
    folder = tmp_path_factory.mktemp("store")
    planted_run(folder)
    small_run(folder)
    return folder


@pytest.fixture(autouse=True)
def _store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLART_STORE", str(store))


def test_as_json_it_names_each_suspect_with_its_rules_and_figures() -> None:
    report = json.loads(rollart("redteam", "planted", "--json").out)
    assert (report["run"], report["suspicious"]) == ("planted", len(PLANTED))
    first = report["trajectories"][0]
    assert first.keys() == {
        "trajectory_id", "domain", "step", "policy_version", "reward", "suspicions", "fired",
    }  # fmt: skip
    assert report["noticed"] == [
        {"kind": "network", "attempts": 2, "rewarded": 1},
        {"kind": "touched_tests", "attempts": 1, "rewarded": 1},
    ]
    assert first["trajectory_id"] == "two-things"
    assert first["fired"]["truncated"]["turns"] == 1
    assert [len(found["fired"]) for found in report["trajectories"]][:2] == [2, 1]
    assert all(rule.keys() == {"name", "why", "trajectories"} for rule in report["rules"])


def test_people_read_why_and_what_to_look_at() -> None:
    said = rollart("redteam", "planted", "--top", "1")
    assert said.code == 0
    assert f"{len(PLANTED)} of 110 scored trajectories are suspicious" in said.out
    assert "short: tokens 1, usual_tokens 40, excess 1" in said.out
    assert "truncated (2): rewarded above the mean though the episode was truncated" in said.out
    command = said.out.strip().splitlines()[-1].split()
    assert command == ["rollart", "show", "planted", "--trajectory", "two-things"]
    assert rollart(*command[1:]).code == 0
    assert "babble" not in said.out
    assert "noticed network: 2 attempts, 1 rewarded" in said.out
    everything = rollart("redteam", "planted").out
    assert "suspicions: suspicions 2" in everything
    assert "noticed touched_tests: test_a.py" in everything


def test_nothing_to_see_is_said() -> None:
    assert rollart("redteam", "small").out == "0 of 32 scored trajectories are suspicious\n"


def test_wrong_use_is_one_line() -> None:
    assert "no run" in refused(rollart("redteam", "absent"))
    assert "--top" in refused(rollart("redteam", "small", "--top", "0"))

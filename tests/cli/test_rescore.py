"""`rollart rescore`: other verdicts on stored attempts, beside those of the run."""

import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.store import Run, RunStatus, RunWriter, open_run, read_info
from rollart_flow.types import Trajectory
from rollart_flow.types.verdicts import Verdict
from rollart_flow.verdict_rows import verdicts_table
from tests.builders import table, trajectory
from tests.checking.doors import PIPELINE, write_pipeline
from tests.cli.shell import refused, rollart
from tests.runs import new_writer


def attempt(number: int, word: str | None, *, passed: bool) -> Trajectory:
    verdicts = (Verdict(key="opens", passed=passed), Verdict(key="closes", passed=True))
    return trajectory(
        "g", number, domain="doors", task_id="good", task='{"kind": "good"}',
        diff=None if word is None else f"+{word}", solved=passed, verdicts=verdicts,
        verifier="door/1",
    )  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that failed, whose verifier was fooled once; one attempt left no diff."""
    store = tmp_path / "store"
    monkeypatch.setenv("ROLLART_STORE", str(store))
    made = [
        attempt(0, "key", passed=True),
        attempt(1, "crowbar", passed=True),
        attempt(2, "nothing", passed=False),
        attempt(3, None, passed=False),
    ]
    writer = new_writer(store, "old")
    (store / "old" / "pipeline.py").write_text(PIPELINE.format(arguments=""))
    verdicts = verdicts_table(made)
    assert verdicts is not None
    writer.commit_many({"trajectories": table(*made), "verdicts": verdicts})
    writer.close(RunStatus.FAILED, "no more keys")
    return open_run(writer.uri)


def rescored(*arguments: str, code: int = 0) -> Any:
    said = rollart("rescore", "old", "--json", "--trust", "--workers", "2", *arguments)
    assert said.code == code, said.err
    return json.loads(said.out)


def test_rows_of_the_new_verifier_stand_beside_those_of_the_run(stored: Run) -> None:
    before = stored.verdicts.collect().sort("seq")
    report = rescored()
    assert (report["run"], report["source"]) == ("old", "rescore-1")
    assert (report["judged"], report["changed"], report["failed"]) == (3, 3, 0)
    fooled = next(each for each in report["trajectories"] if each["trajectory_id"] == "g-01")
    assert fooled == {
        "trajectory_id": "g-01", "task_id": "good", "domain": "doors", "before": True,
        "after": False, "error": None, "verdicts": [
            {"key": "opens", "before": True, "after": False},
            {"key": "closes", "before": True, "after": None},
        ],
    }  # fmt: skip
    after = stored.verdicts.collect().sort("seq")
    assert after.head(before.height).equals(before)
    new = after.filter(pl.col("source") == "rescore-1")
    first = new.filter(pl.col("trajectory_id") == "g-00").select("key", "passed", "value")
    assert first.rows() == [
        ("opens", True, None), ("reward", None, 1.0), ("success", None, 1.0),
    ]  # fmt: skip
    assert set(new["verifier"]) == {"door/2"}
    assert set(new["trajectory_id"]) == {"g-00", "g-01", "g-02"}
    assert stored.as_of(seq=before["seq"].to_list()[-1]).verdicts.collect().height == before.height
    info = stored.info
    assert (info.status, info.error) == (RunStatus.FAILED, "no more keys")


def test_a_second_rescoring_is_compared_with_the_first(stored: Run, tmp_path: Path) -> None:
    rescored()
    assert rescored()["changed"] == 0
    report = rescored("--verifier", write_pipeline(tmp_path, "strict=True"), "--name", "strict")
    assert report["source"] == "strict"
    assert [each["trajectory_id"] for each in report["trajectories"]] == ["g-00"]
    again = rescored("--verifier", write_pipeline(tmp_path, "strict=True"), "--name", "strict")
    assert (again["judged"], again["changed"]) == (0, 0)
    sources = stored.verdicts.collect()["source"].unique().sort().to_list()
    assert sources == ["environment", "rescore-1", "rescore-2", "strict"]


def test_people_read_what_changed(stored: Run) -> None:
    said = rollart("rescore", "old", "--trust")
    assert "3 of 3 verdicts changed under 'rescore-1'" in said.out
    assert "opens: yes -> no" in said.out


def test_an_attempt_that_cannot_be_judged_is_named_and_may_be_judged_later(stored: Run) -> None:
    with RunWriter.open(stored.uri) as writer:
        writer.commit("trajectories", table(attempt(4, "break", passed=False)))
    report = rescored("--name", "again", code=1)
    assert (report["judged"], report["failed"]) == (3, 1)
    failed = next(each for each in report["trajectories"] if each["error"])
    assert "doors: RuntimeError: the verifier broke" in failed["error"]
    assert rescored("--name", "again", code=1)["judged"] == 0
    assert "g-04" not in set(stored.verdicts.collect()["trajectory_id"])


def test_wrong_use_is_one_line(stored: Run, tmp_path: Path) -> None:
    assert "no domain 'windows'" in refused(
        rollart("rescore", "old", "--trust", "--domain", "windows")
    )
    line = refused(rollart("rescore", "old", "--trust", "--name", "environment"))
    assert "cannot be named 'environment'" in line
    other = tmp_path / "other.py"
    other.write_text(PIPELINE.format(arguments="").replace("Doors()", "'arithmetic'"))
    line = refused(rollart("rescore", "old", "--verifier", str(other)))
    assert "domain arithmetic keeps no verifier" in line
    with RunWriter.open(stored.uri):
        assert read_info(stored.uri).owner.pid == os.getpid()
        line = refused(rollart("rescore", "old", "--trust"))
        assert line == "run old is running; rescore it once it has ended"

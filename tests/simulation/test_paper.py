"""`make paper`: the rows of `paper.json`, its table, and its exit codes."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.paper.__main__ import RESULT, main
from tests.cli.shell import Said, refused, said_by

QUICK = "ROLL Flash Figure 7"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def paper(*arguments: str) -> Said:
    return said_by(main, *arguments)


def test_a_figure_is_a_row_with_both_numbers_and_people_read_a_table() -> None:
    said = paper("--only", QUICK, "--jobs", "1")
    assert said.code == 0
    (row,) = json.loads(RESULT.read_text())
    assert row["figure"].startswith(QUICK)
    assert row["seed"] == 0
    assert row["basis"] == "assumed"
    assert f"assumed: {int(row['agrees'])} of 1 within 15%" in said.out
    assert row["published"] == 125 / 37
    assert row["published_range"] == [125 / 37, 125 / 37]
    assert row["ratio"] > 1
    assert row["step_s"] >= row["bound_step_s"] > 0
    assert (row["why"] is None) == (abs(row["ratio"] / row["published"] - 1) <= 0.15)
    assert "3.38" in said.out
    assert ("differs" in said.out) == (row["why"] is not None) == ("is not published" in said.out)


def test_another_seed_is_another_run() -> None:
    paper("--only", QUICK, "--jobs", "1", "--seed", "5")
    (row,) = json.loads(RESULT.read_text())
    assert row["seed"] == 5


def test_a_text_in_no_name_is_refused() -> None:
    told = refused(paper("--only", "Figure 99"))
    assert told == "ONLY=Figure 99: no figure has this text in its name"
    assert not RESULT.exists()

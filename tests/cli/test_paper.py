"""`rollart simulate paper`: figures beside what was published."""

import json

from tests.cli.shell import refused, rollart

QUICK = "ROLL Flash Figure 7"


def test_a_figure_is_a_row_with_both_numbers() -> None:
    (row,) = json.loads(rollart("simulate", "paper", "--only", QUICK, "--json").out)
    assert row["figure"].startswith(QUICK)
    assert row["published"] == 125 / 37
    assert row["ratio"] > 1
    assert row["step_s"] >= row["bound_step_s"] > 0
    assert (row["why"] is None) == (abs(row["ratio"] / row["published"] - 1) <= 0.15)


def test_people_read_a_table_and_why_ours_differs() -> None:
    said = rollart("simulate", "paper", "--only", QUICK, "--jobs", "1")
    assert said.code == 0
    assert "3.38" in said.out
    assert ("differs" in said.out) == ("is not published" in said.out)


def test_a_text_in_no_name_is_refused() -> None:
    told = refused(rollart("simulate", "paper", "--only", "Figure 99"))
    assert told == "--only 'Figure 99' is in the name of no figure"

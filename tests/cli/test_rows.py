"""Rows of a query are a table where it can be read, and blocks where it would be too narrow."""

import polars as pl
import pytest

from rollart_flow.cli.rows import render_rows


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_few_columns_are_a_table() -> None:
    said = render_rows(pl.DataFrame({f"c{n}": ["short", None] for n in range(8)}))
    assert said.count("short") == 8
    assert "row 1" not in said


def test_many_columns_are_a_block_for_each_row_with_whole_names() -> None:
    rows = pl.DataFrame({f"a_long_name_{n}": [n / 3, 2.0] for n in range(8)})
    lines = render_rows(rows).splitlines()
    assert lines[:2] == ["row 1 of 2", "  a_long_name_0  0.0"]
    assert lines[2] == f"  a_long_name_1  {1 / 3}"
    assert lines[9] == "row 2 of 2"
    assert len(lines) == 18


def test_a_long_value_is_cut_at_the_width_and_has_no_line_ends() -> None:
    rows = pl.DataFrame({f"column_{n}": [["x\ny"] * 50] for n in range(9)})
    lines = render_rows(rows).splitlines()
    assert len(lines) == 10
    assert {len(line) for line in lines[1:]} == {80}
    assert lines[1].startswith('  column_0  ["x\\ny", "x\\ny", ')


def test_characters_that_a_terminal_obeys_are_escaped_in_blocks_too() -> None:
    rows = pl.DataFrame({f"column_{n}": ["\x1b]52;c;aGk=\x07"] for n in range(9)})
    said = render_rows(rows)
    assert "\x1b" not in said
    assert "\\u001b]52;c;aGk=\\u0007" in said


def test_no_rows_are_an_empty_table() -> None:
    assert "a" in render_rows(pl.DataFrame({"a": pl.Series([], dtype=pl.String)}))

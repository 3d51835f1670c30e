"""Rows that are drawn from stored runs, and what drawing them reads."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.operators.stored_rows import StoredRows, StoredSource
from rollart_flow.store import RunStatus, RunWriter
from rollart_flow.store.info import write_info
from rollart_flow.store.pins import pin
from rollart_flow.store.table import find_table
from tests.builders import step_row, table, trajectory
from tests.runs import info, new_writer


def source(*runs: str) -> StoredSource:
    return StoredSource(
        name="stored", runs=tuple(pin(uri) for uri in runs), filter=None, prefer=None, best=None,
        count=3, seed=0, split="train", exempt=True, paired=False, grouped=False, bound=None,
    )  # fmt: skip


def committed(folder: Path) -> RunWriter:
    writer = new_writer(folder)
    for attempt in range(9):
        writer.commit("trajectories", table(trajectory("g", attempt)))
    return writer


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that are opened, which lists the log of each."""
    tables: list[str] = []

    def counted(run: str, name: str) -> Any:
        tables.append(name)
        return find_table(run, name)

    monkeypatch.setattr("rollart_flow.store.watch.find_table", counted)
    return tables


def test_only_the_first_draw_opens_tables(tmp_path: Path, opened: list[str]) -> None:
    writer = committed(tmp_path)
    rows = StoredRows("", source(writer.uri))
    opened.clear()
    first = rows.rows(1, (0, 0))
    assert len(opened) == len(set(opened)), "each table once"
    opened.clear()
    assert [rows.rows(step, (0, 0)).num_rows for step in range(2, 20)] == [3] * 18
    assert rows.rows(1, (0, 0)).equals(first)
    assert opened == []


def test_draws_from_the_run_itself_open_only_what_has_changed(
    tmp_path: Path, opened: list[str]
) -> None:
    writer = committed(tmp_path)
    rows = StoredRows(writer.uri, source())
    for step in (1, 2):
        writer.commit("steps", step_row(step))
        assert rows.rows(step + 1, (0, 0)).num_rows == 3
    opened.clear()
    writer.commit("steps", step_row(3))
    assert rows.rows(4, (0, 0)).num_rows == 3
    assert opened == ["steps"]
    opened.clear()
    writer.commit("trajectories", table(trajectory("g", 9)))
    writer.commit("steps", step_row(4))
    assert rows.rows(5, (0, 0)).num_rows == 3
    assert opened == ["trajectories", "steps"], "an earlier draw holds what was open"


def test_rows_are_drawn_again_after_their_files_were_merged(
    tmp_path: Path, opened: list[str]
) -> None:
    writer = committed(tmp_path)
    rows = StoredRows("", source(writer.uri))
    first = rows.rows(1, (0, 0))
    writer.maintain(retention=timedelta(0))
    opened.clear()
    assert rows.rows(1, (0, 0)).equals(first)
    assert opened, "another snapshot was taken"


def test_a_run_that_goes_or_is_imported_meanwhile_is_named(tmp_path: Path) -> None:
    writer = committed(tmp_path)
    rows = StoredRows("", source(writer.uri))
    rows.check()
    for path in (tmp_path / "a/tables/trajectories").glob("*.parquet"):
        path.unlink()
    write_info(writer.uri, replace(info(), status=RunStatus.IMPORTING))
    with pytest.raises(StoreError, match="is being imported"):
        rows.rows(1, (0, 0))
    (tmp_path / "a/run.json").unlink()
    with pytest.raises(StoreError, match="are gone with it; restore its folder"):
        rows.rows(1, (0, 0))

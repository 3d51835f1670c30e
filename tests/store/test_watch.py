"""The open tables of a run, which all its readers in a process share."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rollart_flow.schema import TABLES
from rollart_flow.store import Run, open_run, watch
from rollart_flow.store.pins import pin
from rollart_flow.store.table import find_table
from tests.builders import step_row, trajectories
from tests.runs import new_writer


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that watches open from now on."""
    opened: list[str] = []

    def noted(run: str, table: str) -> DeltaTable | None:
        opened.append(table)
        return find_table(run, table)

    monkeypatch.setattr(watch, "find_table", noted)
    return opened


def test_only_a_table_that_has_changed_is_opened_again(tmp_path: Path, opened: list[str]) -> None:
    with new_writer(tmp_path) as writer:
        run = open_run(writer.uri)
        before = run.snapshot()
        assert opened == [*TABLES]
        writer.commit("trajectories", trajectories(range(4)))
        assert [run.trajectories.collect().height for _ in range(3)] == [4, 4, 4]
        assert opened == [*TABLES, "trajectories"]
        assert before.trajectories.collect().is_empty()


def test_all_readers_of_a_run_in_a_process_share_its_open_tables(
    tmp_path: Path, opened: list[str]
) -> None:
    with new_writer(tmp_path) as writer:
        early = open_run(writer.uri).as_of(seq=0)
        assert early.steps.collect().is_empty()
        writer.commit("steps", step_row(1))
        assert open_run(writer.uri).steps.collect().height == 1
        assert Run(writer.uri).trajectories.collect().is_empty()
        assert pin(writer.uri).seq == 1
        assert early.steps.collect().is_empty()
    assert opened == [*TABLES, "steps"]


@pytest.mark.parametrize("before", [1, 2, 6], ids=str)
@pytest.mark.parametrize("after", [1, 2, 6], ids=str)
@pytest.mark.parametrize("held", [True, False], ids=["held", "looked at"])
def test_another_run_in_the_place_of_one_that_was_read_is_read(
    before: int, after: int, held: bool, tmp_path: Path
) -> None:
    """Its tables have as many versions, or more or fewer."""

    def written(commits: int, rows: int) -> str:
        with new_writer(tmp_path) as writer:
            for commit in range(commits):
                writer.commit(
                    "trajectories", trajectories(range(rows * commit, rows * commit + rows))
                )
        return writer.uri

    uri = written(before, 3)
    run = open_run(uri)
    if held:
        assert run.trajectories.collect().height == 3 * before
    else:
        for table in TABLES:
            watch.watch(uri)._tables[table] = watch._Watched(uri, table)
    shutil.rmtree(uri)
    assert written(after, 5) == uri
    assert open_run(uri).trajectories.collect().height == 5 * after
    assert run.trajectories.collect().height == 5 * after

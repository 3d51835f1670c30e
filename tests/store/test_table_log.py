"""The log of one table: how it begins, and what is read of it."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rollart_flow.errors import FencedError
from rollart_flow.schema import TABLES, delta_schema, stored_schema
from rollart_flow.store import RunWriter, files
from rollart_flow.store.layout import table_uri
from rollart_flow.store.marks import CALLER, COMPLETE, EPOCH, WRITER, mark, read_marks
from rollart_flow.store.table import open_table
from rollart_flow.store.table_log import TableLog
from tests.builders import events, step_row
from tests.runs import new_writer

ALL = (EPOCH, WRITER, COMPLETE, CALLER)


def begun(folder: Path, table: str) -> TableLog:
    """The log of a new table."""
    log = TableLog(str(folder), table)
    log.take_over(3)
    return log


@pytest.mark.parametrize("table", TABLES)
def test_a_new_table_is_the_one_that_deltalake_makes(table: str, tmp_path: Path) -> None:
    begun(tmp_path / "run", table)
    ours = DeltaTable(table_uri(str(tmp_path / "run"), table))
    theirs = DeltaTable.create(
        tmp_path / "theirs",
        schema=delta_schema(table),
        name=table,
        configuration=ours.metadata().configuration,
    )
    assert ours.version() == theirs.version() == 0
    assert ours.protocol() == theirs.protocol()
    assert ours.schema() == theirs.schema()
    found, expected = ours.metadata(), theirs.metadata()
    assert found.id != expected.id
    assert (found.name, found.description, found.partition_columns) == (
        (expected.name, expected.description, expected.partition_columns)
    )
    assert found.configuration["delta.dataSkippingStatsColumns"] == "seq"
    assert ours.to_pyarrow_table().schema.names == stored_schema(table).names


def test_of_two_writers_that_make_a_table_the_second_takes_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(tmp_path, "steps")
    assert (first.version, first.epoch, first.term) == (0, 1, 3)
    with monkeypatch.context() as patch:
        patch.setattr(files, "names", lambda folder: [])  # as it was before the first one wrote
        second = begun(tmp_path, "steps")
    assert (second.version, second.epoch) == (1, 2)
    with pytest.raises(FencedError):
        first.append([], {WRITER: 1}, {})
    second.append([], {WRITER: 1}, {})
    assert second.version == 2


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    """A writer of a run whose marks lie in several entries of its logs."""
    with new_writer(tmp_path) as writer:
        writer.commit("events", events("x"), transaction=7)
        yield writer


@pytest.mark.parametrize("commits", [0, 1, 30], ids=["few entries", "some", "more than are read"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["all entries", "a checkpoint"])
def test_marks_are_those_that_deltalake_reads(
    writer: RunWriter, commits: int, checkpoint: bool
) -> None:
    for step in range(1, commits + 1):
        writer.commit("steps", step_row(step))
        writer.commit("events", events("y"))
    if checkpoint:
        writer.maintain(retention=timedelta(0))
    for table in ("events", "steps", "weights"):
        handle = open_table(writer.uri, table)
        found = read_marks(table_uri(writer.uri, table), handle, ALL)
        assert found == {app: mark(handle, app) for app in ALL}
    handle = open_table(writer.uri, "events")
    assert read_marks(table_uri(writer.uri, "events"), handle, ALL)[CALLER] == 7


def test_newest_marks_are_read_without_deltalake(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("rollart_flow.store.marks.mark", lambda handle, app: asked.append(app))
    RunWriter.open(writer.uri)
    assert asked == []

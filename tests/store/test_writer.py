"""The writer commits rows durably, in order, once, and alone."""

import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from rollart_flow.errors import (
    FencedError,
    RunExistsError,
    RunNotFoundError,
    SchemaError,
    StoreError,
)
from rollart_flow.schema import row_schema
from rollart_flow.store import RunStatus, RunWriter, files, open_run, read_info
from rollart_flow.store.lease_file import Tenure
from rollart_flow.store.owner import Owner
from rollart_flow.store.table import data_files, open_table
from rollart_flow.store.table_log import TableLog
from tests.builders import events, step_row, trajectories
from tests.runs import ids, info, new_writer, seqs
from tests.store.failing import failing_append


def test_rows_come_back_as_they_were_given(tmp_path: Path) -> None:
    given = trajectories(range(5))
    writer = new_writer(tmp_path)
    assert writer.commit("trajectories", given) == (1, 5)
    stored = open_run(tmp_path / "a").trajectories.sort("seq").collect().to_arrow()
    back = stored.select(given.column_names).cast(row_schema("trajectories"))
    assert back.equals(given)


def test_seq_grows_over_all_tables_and_over_writers(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    spans = [writer.commit("trajectories", trajectories(range(3)))]
    spans.append(writer.commit("events", events("x", "y")))
    again = RunWriter.open(writer.uri)
    spans.append(again.commit("trajectories", trajectories(range(3, 4))))
    spans.append(again.commit("steps", step_row(1)))
    assert spans == [(1, 3), (4, 5), (6, 6), (7, 7)]
    assert again.last_seq == 7


def test_a_group_gives_the_step_the_highest_seq(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    spans = writer.commit_many({"steps": step_row(1), "events": events("x", "y")})
    assert spans == {"events": (1, 2), "steps": (3, 3)}
    assert open_run(writer.uri).as_of(step=1).events.collect().height == 2


def test_no_rows_are_no_commit(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    assert writer.commit("events", events()) == (1, 0)
    assert writer.commit("events", events("x")) == (1, 1)


def test_a_group_that_fails_half_way_is_not_seen_and_is_taken_away(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    run = open_run(writer.uri)
    group = {"trajectories": trajectories(range(4)), "events": events("x")}
    with failing_append("events"), pytest.raises(StoreError, match="events: injected"):
        writer.commit_many(group, transaction=1)
    assert file_spans(writer.uri) == [(1, 4)]
    assert run.trajectories.collect().is_empty()

    writer.commit("events", events("y"))
    assert file_spans(writer.uri) == []
    assert run.trajectories.collect().is_empty()

    writer.commit_many(group, transaction=2)
    assert ids(run.trajectories) == ["t0", "t1", "t2", "t3"]


def test_half_a_group_of_a_dead_writer_is_taken_away_by_the_next(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.commit("trajectories", trajectories(range(2)))
    group = {"trajectories": trajectories(range(2, 4)), "events": events("x")}
    with failing_append("events"), pytest.raises(StoreError):
        writer.commit_many(group, transaction=1)
    again = RunWriter.open(writer.uri)
    assert file_spans(writer.uri) == [(1, 2)]
    again.commit_many(group, transaction=1)
    assert ids(open_run(writer.uri).trajectories) == ["t0", "t1", "t2", "t3"]
    assert seqs(open_run(writer.uri).events) > [4]


def file_spans(uri: str) -> list[tuple[int, int]]:
    """(least, greatest) seq of the live files of `trajectories`."""
    found = data_files(open_table(uri, "trajectories"))
    return [(file.first_seq, file.last_seq) for file in found]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_retry_after_a_lost_acknowledgement_writes_once(tmp_path: Path, fresh: bool) -> None:
    writer = new_writer(tmp_path)
    group = {"trajectories": trajectories(range(3)), "events": events("x")}
    unacknowledged = writer.commit_many(group, transaction=1)
    writer.commit("trajectories", trajectories(range(3, 5)), transaction=2)
    retrying = RunWriter.open(writer.uri) if fresh else writer
    assert retrying.commit_many(group, transaction=1) == unacknowledged
    assert retrying.commit("trajectories", trajectories(range(3, 5)), transaction=2) == (5, 6)
    assert ids(open_run(writer.uri).trajectories) == ["t0", "t1", "t2", "t3", "t4"]
    assert open_run(writer.uri).events.collect().height == 1


def test_an_error_that_hides_a_commit_is_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = new_writer(tmp_path)

    real = files.write

    def commit_then_fail(uri: str, data: bytes, *, exclusive: bool = False) -> bool:
        real(uri, data, exclusive=exclusive)
        raise StoreError("connection reset after the commit")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", commit_then_fail)
        assert writer.commit("trajectories", trajectories(range(3))) == (1, 3)
    assert writer.commit("trajectories", trajectories(range(3, 4))) == (4, 4)
    assert seqs(open_run(writer.uri).trajectories) == [1, 2, 3, 4]


@pytest.mark.parametrize("fresh", [False, True])
def test_an_interrupt_between_commit_and_return_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: bool
) -> None:
    writer = new_writer(tmp_path)
    real = TableLog.append

    def append_then_interrupt(self: TableLog, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TableLog, "append", append_then_interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.commit("trajectories", trajectories(range(3)), transaction=1)
    retrying = RunWriter.open(writer.uri) if fresh else writer
    assert retrying.commit("trajectories", trajectories(range(3)), transaction=1) == (1, 3)
    assert retrying.commit("trajectories", trajectories(range(3, 4)), transaction=2) == (4, 4)
    assert ids(open_run(writer.uri).trajectories) == ["t0", "t1", "t2", "t3"]


_KILLED = """
import os, sys
from rollart_flow.store import RunWriter
from rollart_flow.store.table_log import TableLog
from tests.builders import trajectories
writer = RunWriter.open(sys.argv[1])
writer.commit("trajectories", trajectories(range(2)), transaction=1)
real = TableLog.append
def append(self, *arguments):
    real(self, *arguments)
    os.kill(os.getpid(), 9)
TableLog.append = append
writer.commit("trajectories", trajectories(range(2, 4)), transaction=2)
"""


def test_kill_9_between_commit_and_acknowledgement(tmp_path: Path) -> None:
    uri = new_writer(tmp_path).uri
    killed = subprocess.run([sys.executable, "-c", _KILLED, uri], check=False, timeout=60)
    assert killed.returncode == -9
    assert read_info(uri).status is RunStatus.INTERRUPTED
    writer = RunWriter.open(uri)
    assert read_info(uri).status is RunStatus.RUNNING
    writer.commit("trajectories", trajectories(range(2, 4)), transaction=2)
    assert ids(open_run(uri).trajectories) == ["t0", "t1", "t2", "t3"]


def test_numbers_of_commits_must_grow(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    writer.commit("events", events("x"), transaction=5)
    with pytest.raises(StoreError, match="transaction 4 comes after 5"):
        writer.commit("events", events("y"), transaction=4)
    with pytest.raises(StoreError, match="transaction 5 was committed with other rows"):
        writer.commit("events", events("y", "z"), transaction=5)


def test_the_older_writer_is_fenced(tmp_path: Path) -> None:
    older = new_writer(tmp_path)
    older.commit("trajectories", trajectories(range(2)))
    newer = RunWriter.open(older.uri)
    with pytest.raises(FencedError, match="trajectories: another writer has taken over the run"):
        older.commit("trajectories", trajectories(range(2, 4)))
    newer.commit("trajectories", trajectories(range(2, 4)))
    with pytest.raises(FencedError):
        older.commit("trajectories", trajectories(range(4, 5)))
    with pytest.raises(FencedError):
        older.commit("steps", step_row(1))
    older.close(RunStatus.FAILED)
    assert open_run(older.uri).status is RunStatus.RUNNING
    assert ids(open_run(older.uri).trajectories) == ["t0", "t1", "t2", "t3"]


def test_taking_over_amid_commits_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    older = new_writer(tmp_path)
    acknowledged: list[int] = []
    started = threading.Event()

    def commit_until_fenced() -> None:
        try:
            while True:
                rows = {"trajectories": trajectories(range(1)), "events": events("x")}
                acknowledged.extend(span[0] for span in older.commit_many(rows).values())
                started.set()
        except FencedError:
            return

    thread = threading.Thread(target=commit_until_fenced)
    thread.start()
    started.wait()
    newer = RunWriter.open(older.uri)
    thread.join()
    newer.commit("events", events("y"))
    snapshot = open_run(older.uri).snapshot()
    stored = seqs(snapshot.trajectories) + seqs(snapshot.events)
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)
    assert snapshot.events.collect().height == snapshot.trajectories.collect().height + 1


def test_commits_of_many_threads_keep_the_order(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)

    def commit(number: int) -> None:
        for _ in range(3):
            writer.commit("events", events(f"e{number}", f"e{number}"))

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = open_run(writer.uri).events.sort("seq").collect()
    assert rows["seq"].to_list() == list(range(1, 19))
    assert rows["committed_at"].is_sorted()


def test_committed_at_never_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_writer(tmp_path)
    writer.commit("events", events("x"))
    monkeypatch.setattr("rollart_flow.store.writer.time.time_ns", lambda: 0)
    writer.commit("events", events("y"))
    RunWriter.open(writer.uri).commit("steps", step_row(1))
    run = open_run(writer.uri)
    first = run.events.select(pl.col("committed_at").min()).collect().item()
    assert run.events.collect()["committed_at"].to_list() == [first, first]
    assert run.steps.collect()["committed_at"].item() == first


def test_a_run_is_made_once(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    with pytest.raises(RunExistsError, match=r"there is a run at .*/a already"):
        RunWriter.create(writer.uri, info())
    with pytest.raises(RunNotFoundError, match=r"no run at .*/b: there is no run.json"):
        RunWriter.open(str(tmp_path / "b"))


def test_a_run_belongs_to_its_driver_and_not_to_the_process_of_its_writer(tmp_path: Path) -> None:
    """While the buffer restarts, the process of the writer is gone and the run goes on."""
    uri = new_writer(tmp_path).uri
    with subprocess.Popen(["sleep", "600"]) as driver:
        try:
            RunWriter.open(uri, Tenure(Owner.of(driver.pid), 1))
            assert read_info(uri).owner == Owner.of(driver.pid)
            assert read_info(uri).status is RunStatus.RUNNING
        finally:
            driver.kill()
    assert read_info(uri).status is RunStatus.INTERRUPTED


def test_how_a_run_ended_is_recorded(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        assert open_run(writer.uri).status is RunStatus.RUNNING
    assert open_run(writer.uri).status is RunStatus.FINISHED
    with pytest.raises(StoreError, match="is closed"):
        writer.commit("events", events("x"))
    with pytest.raises(ValueError, match="no"), RunWriter.open(writer.uri):
        raise ValueError("no\nsecond line")
    assert open_run(writer.uri).status is RunStatus.FAILED
    assert open_run(writer.uri).info.error == "ValueError: no second line"


def test_wrong_rows_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    rows = trajectories(range(2))
    longs = rows.set_column(
        rows.column_names.index("token_ids"),
        "token_ids",
        pa.array([[1], [2]], pa.list_(pa.int64())),
    )
    with pytest.raises(SchemaError, match=r"trajectories\.token_ids: type list<.*int64> given"):
        writer.commit("trajectories", longs)
    with pytest.raises(SchemaError, match="trajectories: column 'reward' is missing"):
        writer.commit("trajectories", rows.drop_columns(["reward"]))
    with pytest.raises(SchemaError, match="no table 'rollouts'; the tables of a run are"):
        writer.commit("rollouts", rows)
    with pytest.raises(SchemaError, match="events: unknown column"):
        writer.commit_many({"trajectories": rows, "events": rows})
    assert writer.commit("trajectories", rows) == (1, 2)

"""Compaction, vacuum and checkpoints run beside the writer and change nothing that is read."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.errors import StoreError
from rollart_flow.store import RunWriter, open_run
from rollart_flow.store.maintenance import mergeable
from rollart_flow.store.table import data_files, open_table
from tests.builders import batches, events, step_row, trajectories
from tests.runs import ids, new_writer, seqs
from tests.store.failing import failing_append


def fill(writer: RunWriter, start: int, commits: int) -> None:
    """Commit two trajectories and an event at a time."""
    for n in range(start, start + commits):
        writer.commit_many(
            {"trajectories": trajectories(range(2 * n, 2 * n + 2)), "events": events(f"e{n}")}
        )


def spans(uri: str, table: str = "trajectories") -> Iterator[tuple[int, int]]:
    """(least, greatest) seq of each live file, in order."""
    for file in data_files(open_table(uri, table)):
        yield file["min.seq"], file["max.seq"]


def test_small_files_become_one_in_the_order_of_seq(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 9)
    before = open_run(writer.uri).trajectories.collect()
    done = writer.maintain()
    assert done["trajectories"].merged == 9
    assert done["batches"].merged == 0
    assert list(spans(writer.uri)) == [(1, 26)]
    after = open_run(writer.uri).trajectories.collect()
    assert after["seq"].is_sorted()
    assert after.equals(before.sort("seq"))


def test_files_never_overlap_over_several_rounds(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    for round_ in range(3):
        fill(writer, 8 * round_, 8)
        writer.maintain()
        fill(writer, 100 + round_, 1)
    bounds = [bound for span in spans(writer.uri) for bound in span]
    assert bounds == sorted(bounds)
    assert seqs(open_run(writer.uri).trajectories) == sorted(
        seq for n in range(27) for seq in (3 * n + 1, 3 * n + 2)
    )


def test_a_moment_stays_what_it_was_after_compaction_and_vacuum(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 5)
    writer.commit("batches", batches(1, [3, 1, 2, 0]))
    writer.commit("steps", step_row(1))
    fill(writer, 5, 5)
    run = open_run(writer.uri)
    moments = {
        "step": run.as_of(step=1),
        "seq": run.as_of(seq=8),
        "time": run.as_of(time=run.steps.collect()["committed_at"].item()),
    }
    before = {name: ids(moment.trajectories) for name, moment in moments.items()}
    batch = run.batch(1)
    assert before["step"] == before["time"] == [f"t{n}" for n in range(10)]
    assert before["seq"] == [f"t{n}" for n in range(6)]

    done = writer.maintain(retention=timedelta(0))
    assert done["trajectories"].vacuumed == 10
    assert {name: ids(moment.trajectories) for name, moment in moments.items()} == before
    assert ids(open_run(writer.uri).as_of(step=1).trajectories) == before["step"]
    assert open_run(writer.uri).as_of(step=1).batch(1).equals(batch)


def test_a_reader_keeps_its_snapshot_for_the_retention(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 8)
    snapshot = open_run(writer.uri).snapshot()
    assert writer.maintain()["trajectories"].vacuumed == 0
    assert len(ids(snapshot.trajectories)) == 16


def test_rows_of_an_incomplete_group_are_left_alone(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 8)
    group = {"trajectories": trajectories(range(90, 92)), "events": events("x")}
    with failing_append("events"), pytest.raises(StoreError):
        writer.commit_many(group)
    writer.maintain()
    assert list(spans(writer.uri)) == [(1, 23), (25, 26)]
    fill(writer, 8, 1)
    assert ids(open_run(writer.uri).trajectories) == [f"t{n}" for n in range(18)]


def test_commits_and_readers_go_on_beside_maintenance(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 8)
    stop = threading.Event()
    torn: list[str] = []
    reads: list[int] = []

    def read() -> None:
        run = open_run(writer.uri)
        while not stop.is_set():
            snapshot = run.snapshot()
            counted, happened = pl.collect_all(
                [snapshot.trajectories.select(pl.len()), snapshot.events.select(pl.len())]
            )
            reads.append(counted.item())
            if counted.item() != 2 * happened.item():
                torn.append(f"{counted.item()} rows with {happened.item()} events")

    def maintain() -> None:
        while not stop.is_set():
            writer.maintain(retention=timedelta(hours=1))

    threads = [threading.Thread(target=read), threading.Thread(target=maintain)]
    for thread in threads:
        thread.start()
    fill(writer, 8, 40)
    stop.set()
    for thread in threads:
        thread.join()
    assert not torn
    assert reads == sorted(reads)
    assert ids(open_run(writer.uri).trajectories) == [f"t{n}" for n in range(96)]


def test_a_checkpoint_bounds_what_a_reader_replays(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    due = [writer.maintenance_due]
    for n in range(50):
        writer.commit("events", events(f"e{n}"))
    due.append(writer.maintenance_due)
    writer.maintain()
    due.append(writer.maintenance_due)
    assert due == [False, True, False]
    log = tmp_path / "a" / "tables" / "events" / "_delta_log"
    assert (log / "_last_checkpoint").exists()
    assert RunWriter.open(writer.uri).commit("events", events("y")) == (51, 51)


def test_files_are_merged_only_with_neighbours_and_up_to_a_size() -> None:
    small = [{"size_bytes": 1 << 20, "path": str(n)} for n in range(8)]
    large = {"size_bytes": 64 << 20, "path": "large"}
    assert mergeable([]) == []
    assert mergeable(small[:7]) == []
    assert mergeable(small) == [small]
    assert mergeable([large, *small]) == [small]
    assert mergeable([*small[:4], large, *small[4:]]) == []
    assert [len(run) for run in mergeable(small * 20)] == [64, 64, 32]

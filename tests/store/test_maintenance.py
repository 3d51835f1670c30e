"""Compaction, vacuum and checkpoints run beside the writer and change nothing that is read."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random

import polars as pl
import pytest

from rollart_flow.errors import FencedError, StoreError
from rollart_flow.store import (
    Run,
    RunWriter,
    Snapshot,
    files,
    maintenance,
    open_run,
    table_log,
    unused_files,
)  # fmt: skip
from rollart_flow.store.maintenance import mergeable
from rollart_flow.store.table import DataFile, data_files, open_table
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
        yield file.first_seq, file.last_seq


def test_a_log_that_names_a_file_elsewhere_is_not_maintained(tmp_path: Path) -> None:
    precious = tmp_path / "precious.parquet"
    precious.write_text("mine")
    writer = new_writer(tmp_path)
    fill(writer, 0, 2)
    table = Path(writer.uri) / "tables" / "trajectories"
    file = next(table.glob("*.parquet"))
    for entry in (table / "_delta_log").glob("*.json"):
        entry.write_text(entry.read_text().replace(file.name, "../../../precious.parquet"))
    with pytest.raises(StoreError, match="is not the name of a file in this folder"):
        RunWriter.open(writer.uri)
    assert precious.read_text() == "mine"


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
    for n in range(100):
        writer.commit("events", events(f"e{n}"))
    due.append(writer.maintenance_due)
    writer.maintain()
    due.append(writer.maintenance_due)
    assert due == [False, True, False]
    log = tmp_path / "a" / "tables" / "events" / "_delta_log"
    assert (log / "_last_checkpoint").exists()
    assert RunWriter.open(writer.uri).commit("events", events("y")) == (101, 101)


def files_of(*sizes: int) -> list[DataFile]:
    """Adjacent files of these sizes, with one row each."""
    return [DataFile(f"{n}", size, n, n) for n, size in enumerate(sizes)]


def merged_sizes(*sizes: int, final: bool = False) -> list[list[int]]:
    """Sizes of the files that are merged into each new one."""
    return [[file.size_bytes for file in run] for run in mergeable(files_of(*sizes), final=final)]


def test_files_are_merged_with_neighbours_when_they_move_up_a_tier() -> None:
    kib, mib = 1 << 10, 1 << 20
    assert merged_sizes() == []
    assert merged_sizes(*[kib] * 7) == []
    assert merged_sizes(*[kib] * 8) == [[kib] * 8]
    assert merged_sizes(60 * kib, 5 * kib) == [[60 * kib, 5 * kib]]
    assert merged_sizes(*[100 * kib] * 10) == []
    assert merged_sizes(*[100 * kib] * 11) == [[100 * kib] * 11]
    assert merged_sizes(*[kib] * 7, 100 * kib, *[kib] * 7) == []
    assert merged_sizes(*[3 * mib] * 21) == []
    assert merged_sizes(*[3 * mib] * 22) == [[3 * mib] * 22]
    assert merged_sizes(*[4 * mib] * 100) == []
    assert merged_sizes(*[3 * mib] * 21, 4 * mib, *[3 * mib] * 21) == []


def test_the_last_maintenance_merges_all_small_neighbours() -> None:
    kib, mib = 1 << 10, 1 << 20
    assert merged_sizes(40 * mib, mib, kib, kib, final=True) == [[mib, kib, kib]]
    assert merged_sizes(kib, 40 * mib, kib, final=True) == []


@pytest.mark.parametrize("largest", [10, 300, 3000])
def test_a_row_is_rewritten_a_few_times_and_files_stay_few(largest: int) -> None:
    """Commits of random sizes, maintained after every 50 of them."""
    random = Random(largest)
    live: list[DataFile] = []
    written = rewritten = 0
    for _ in range(200):
        for _ in range(50):
            size = random.randint(2, largest) << 10
            live.append(DataFile("", size, written, written))
            written += size
        while found := mergeable(live):
            for run in found:
                size = sum(file.size_bytes for file in run)
                rewritten += size
                first = live.index(run[0])
                live[first : first + len(run)] = [DataFile("", size, run[0].first_seq, 0)]
    assert rewritten <= 4 * written
    assert len(live) < 100 + written / (4 << 20)


def log_files(uri: str, table: str = "trajectories") -> list[str]:
    """Names in the Delta log of a table."""
    return sorted(path.name for path in Path(uri, "tables", table, "_delta_log").iterdir())


@pytest.fixture
def early_checkpoints(monkeypatch: pytest.MonkeyPatch) -> int:
    """Number of log entries after which there is a checkpoint: fewer than for a real run."""
    monkeypatch.setattr(maintenance, "_CHECKPOINT_AFTER", 20)
    return 20


def test_log_entries_before_a_checkpoint_are_removed(
    tmp_path: Path, early_checkpoints: int
) -> None:
    writer = new_writer(tmp_path)
    run = open_run(writer.uri)
    for start in range(0, 48, 24):
        fill(writer, start, 24)
        assert len(ids(run.trajectories)) == 2 * (start + 24)
        writer.maintain(retention=timedelta(0))
    assert len(log_files(writer.uri)) < 10
    assert len(ids(run.trajectories)) == len(ids(open_run(writer.uri).trajectories)) == 96
    again = RunWriter.open(writer.uri)
    fill(again, 48, 1)
    assert len(ids(run.trajectories)) == 98


def test_log_entries_are_kept_for_readers_for_the_retention(
    tmp_path: Path, early_checkpoints: int
) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, early_checkpoints)
    writer.maintain()
    assert f"{0:020d}.json" in log_files(writer.uri)


def test_an_older_writer_cannot_commit_below_a_checkpoint(
    tmp_path: Path, early_checkpoints: int
) -> None:
    older = new_writer(tmp_path)
    fill(older, 0, 1)
    newer = RunWriter.open(older.uri)
    fill(newer, 1, early_checkpoints)
    newer.maintain(retention=timedelta(0))
    with pytest.raises(FencedError):
        fill(older, 900, 1)
    assert len(ids(open_run(older.uri).trajectories)) == 2 * (1 + early_checkpoints)


def test_the_end_of_a_run_leaves_one_file_a_table_and_one_checkpoint(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 30)
    writer.maintain()
    fill(writer, 30, 30)
    before = open_run(writer.uri).trajectories.sort("seq").collect()
    writer.close()
    run = open_run(writer.uri)
    assert run.trajectories.sort("seq").collect().equals(before)
    for table in ("trajectories", "events"):
        folder = tmp_path / "a" / "tables" / table
        (live,) = data_files(open_table(writer.uri, table))
        assert [path.name for path in folder.glob("*.parquet")] == [live.path]
        newest = f"{open_table(writer.uri, table).version():020d}"
        assert log_files(writer.uri, table) == [
            f"{newest}.checkpoint.parquet",
            f"{newest}.json",
            "_last_checkpoint",
        ]


def test_files_that_a_killed_writer_left_are_removed(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 8)
    writer.maintain()  # the replaced files are left, since the writer is not closed
    folder = tmp_path / "a" / "tables" / "trajectories"
    (folder / "part-of-no-commit.parquet").write_bytes(b"torn")
    assert len(list(folder.glob("*.parquet"))) == 10
    with RunWriter.open(writer.uri) as again:
        assert len(list(folder.glob("*.parquet"))) == 10, "readers may use them for a while"
        again.maintain(retention=timedelta(0))
    assert len(list(folder.glob("*.parquet"))) == 1


class Clocks:
    """Both clocks of a machine, which pass only when they are told to."""

    def __init__(self) -> None:
        self.now_s = 1e9

    def time(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """The clocks of the log and of the retention."""
    clocks = Clocks()
    for module in (table_log, unused_files):
        monkeypatch.setattr(module, "time", clocks)
    return clocks


def test_a_writer_continues_the_retention_of_those_before_it(
    tmp_path: Path, clocks: Clocks, early_checkpoints: int
) -> None:
    """Each is killed after four minutes, in which no file comes to the end of its retention."""
    uri, folder = new_writer(tmp_path).uri, tmp_path / "a" / "tables" / "trajectories"
    found = []
    for life in range(8):
        writer = RunWriter.open(uri)
        (folder / f"part-{life}-of-no-commit.parquet").write_bytes(b"torn")
        fill(writer, 24 * life, 24)
        writer.maintain()
        found.append(len([*folder.rglob("*.*")]))
        clocks.now_s += 240
    assert max(found[4:]) <= max(found[:4]), f"files by life: {found}"
    assert len(ids(open_run(uri).trajectories)) == 8 * 48


def test_a_file_is_kept_for_its_whole_retention_across_writers(
    tmp_path: Path, clocks: Clocks
) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 8)
    writer.maintain()
    snapshot = open_run(writer.uri).snapshot()
    fill(writer, 8, 8)
    writer.maintain()
    removed = []
    for seconds in (0, 540, 120):
        clocks.now_s += seconds
        removed.append(RunWriter.open(writer.uri).maintain()["trajectories"].vacuumed)
        if not removed[-1]:
            assert len(ids(snapshot.trajectories)) == 16
    assert removed == [0, 0, 17], "16 files, and the one that the first eight were merged into"


def test_a_query_whose_files_are_merged_meanwhile_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = new_writer(tmp_path)
    fill(writer, 0, 8)
    writer.commit("batches", batches(1, [3, 1]))
    run = open_run(writer.uri)
    real = Run.snapshot

    def snapshot_then_merge(self: Run) -> Snapshot:
        taken = real(self)
        fill(writer, 900, 8)
        writer.maintain(retention=timedelta(0))
        return taken

    query = "SELECT count(*) AS n FROM trajectories WHERE trajectory_id < 't2'"
    reads: list[Callable[[], int]] = [
        lambda: int(run.sql(query).item()),
        lambda: int(run.batch(1).num_rows),
    ]
    for read in reads:
        with monkeypatch.context() as patch:
            patch.setattr(Run, "snapshot", snapshot_then_merge)
            with pytest.raises(FileNotFoundError):
                read()
        fill(writer, 500, 8)
        taken = iter([snapshot_then_merge, real])
        with monkeypatch.context() as patch:
            patch.setattr(Run, "snapshot", lambda self, taken=taken: next(taken)(self))
            assert read() > 0


def test_a_table_that_cannot_be_merged_keeps_no_other_from_it(tmp_path: Path) -> None:
    writer = new_writer(tmp_path)
    for number in range(60):
        rows = {"trajectories": trajectories(range(number, number + 1)), "events": events("x")}
        writer.commit_many(rows)
    damaged = data_files(open_table(writer.uri, "trajectories"))[0].path
    (Path(writer.uri) / "tables" / "trajectories" / damaged).write_bytes(b"PAR1 torn")
    with pytest.raises(StoreError, match=r"^trajectories: cannot merge files of "):
        writer.maintain()
    assert len(data_files(open_table(writer.uri, "events"))) < 10


def test_files_that_could_not_be_removed_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = new_writer(tmp_path)
    for number in range(20):
        writer.commit("trajectories", trajectories(range(number, number + 1)))
    folder = Path(writer.uri) / "tables" / "trajectories"

    def full(*_: object) -> None:
        raise StoreError("cannot remove files: I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove_all", full)
        with pytest.raises(StoreError, match="I/O error"):
            writer.maintain(retention=timedelta(0))
    assert len(list(folder.glob("*.parquet"))) > 20
    writer.maintain(retention=timedelta(0))
    live = data_files(open_table(writer.uri, "trajectories"))
    assert len(list(folder.glob("*.parquet"))) == len(live)


def test_threads_do_not_grow_with_the_length_of_a_run(tmp_path: Path) -> None:
    """Threads in which deltalake reads a log do not count: each ends after some idle seconds."""
    writer = new_writer(tmp_path)
    there = []
    for life in range(3):
        for number in range(110 * life, 110 * (life + 1)):
            writer.commit("trajectories", trajectories(range(number, number + 1)))
        writer.maintain()
        assert open_run(writer.uri).trajectories.collect().height == 110 * (life + 1)
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        there.append(sum(not name.startswith("tokio-rt-worker") for name in names))
    assert max(there[1:]) <= there[0] + 16, f"threads grew: {there}"

"""Missing and torn files of a run: one line that says how to go on, and rows that stay."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.operators.recovery import recover
from rollart_flow.store import Run, RunWriter, open_run
from rollart_flow.store.damage import check_files, reading
from tests.builders import trajectories
from tests.cli.shell import refused, rollart
from tests.runs import ids, new_writer, small_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return small_run(tmp_path)


def data_file(run: Run) -> Path:
    (found,) = (Path(run.uri) / "tables" / "trajectories").glob("*.parquet")
    return found


def test_a_whole_run_is_read(run: Run) -> None:
    with reading(run.uri):
        assert run.trajectories.collect().height == 44


@pytest.mark.parametrize("torn", [False, True], ids=["missing", "torn"])
def test_a_damaged_data_file_is_named_with_a_repair_that_works(run: Run, torn: bool) -> None:
    file = data_file(run)
    if torn:
        file.write_bytes(file.read_bytes()[:1000])
    else:
        file.unlink()
    lines = [
        refused(rollart("show", run.uri), code=1),
        refused(rollart("query", run.uri, "SELECT count(*) AS n FROM trajectories"), code=1),
        refused(rollart("redteam", run.uri), code=1),
    ]
    assert all(line.startswith(f"trajectories: data file {file} is ") for line in lines)
    for use in (lambda: run.batch(2), lambda: recover(run), lambda: check_files(run.uri)):
        with pytest.raises(StoreError, match=r"^trajectories: data file "):
            use()
    repair = re.search("(python -c .*)$", lines[0])
    assert repair is not None
    file.unlink(missing_ok=True)
    command = repair[1].replace("python", sys.executable, 1)
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    check_files(run.uri)
    assert run.steps.collect().height == 4
    RunWriter.open(run.uri).commit("trajectories", trajectories(range(1)))
    assert ids(run.trajectories) == ["t0"]


def test_a_frame_whose_files_were_merged_meanwhile_is_said_to_be_one(run: Run) -> None:
    with (
        pytest.raises(StoreError, match="were merged while they were read; read it again"),
        reading(run.uri),
    ):
        raise FileNotFoundError("part-1.parquet")


@pytest.mark.parametrize(
    "kept", [0, 1, 3, 0.5], ids=["empty", "cut", "cut after the file", "cut within a line"]
)
def test_a_torn_newest_log_entry_loses_no_row_silently(tmp_path: Path, kept: float) -> None:
    writer = new_writer(tmp_path)
    writer.commit("trajectories", trajectories(range(2)))
    writer.commit("trajectories", trajectories(range(2, 4)))
    entry = max((tmp_path / "a" / "tables" / "trajectories" / "_delta_log").glob("*.json"))
    whole = entry.read_text()
    lines = whole.splitlines(keepends=True)
    left = whole[: int(kept * len(whole))] if kept == 0.5 else "".join(lines[: int(kept)])
    entry.write_text(left)
    for use in (lambda: open_run(writer.uri).trajectories, lambda: RunWriter.open(writer.uri)):
        with pytest.raises(
            StoreError, match=rf"the newest entry of its log, {entry}, is torn; put"
        ):
            use()
    entry.write_text(whole)
    assert ids(open_run(writer.uri).trajectories) == ["t0", "t1", "t2", "t3"]
    entry.unlink()
    RunWriter.open(writer.uri).commit("trajectories", trajectories(range(5, 6)))
    assert ids(open_run(writer.uri).trajectories) == ["t0", "t1", "t5"]

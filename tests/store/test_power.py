"""What was acknowledged outlives a power failure, also what deltalake has written."""

from datetime import timedelta
from pathlib import Path

import pytest

from rollart_flow.store import RunWriter, files, open_run
from rollart_flow.store.blobs import FSYNC_VARIABLE
from tests.builders import trajectories
from tests.runs import ids, new_writer
from tests.store.power import watched_disk


def commit(writer: RunWriter, first: int, last: int) -> None:
    for number in range(first, last):
        writer.commit("trajectories", trajectories(range(number, number + 1)))


def names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def test_the_first_rows_of_a_run(tmp_path: Path) -> None:
    """A table's first entry and its folders are on the disk before any row is acknowledged."""
    with watched_disk() as disk:
        writer = new_writer(tmp_path)
        commit(writer, 0, 2)
        log = tmp_path / "a" / "tables" / "trajectories" / "_delta_log"
        assert disk.lacks_folder(log, tmp_path / "a") is None
        disk.cut_power(tmp_path)
    assert ids(open_run(writer.uri).trajectories) == names(2)
    commit(RunWriter.open(writer.uri), 2, 3)
    assert ids(open_run(writer.uri).trajectories) == names(3)


class DiedError(BaseException):
    """Ends a writer as a kill would: nothing handles it."""


def test_the_first_rows_of_a_writer_that_takes_over_from_one_that_died_at_a_new_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(folder: str, *names: str) -> None:
        raise DiedError

    with watched_disk() as disk:
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync", dies)
            with pytest.raises(DiedError):
                new_writer(tmp_path)
        writer = RunWriter.open(str(tmp_path / "a"))
        commit(writer, 0, 2)
        log = tmp_path / "a" / "tables" / "trajectories" / "_delta_log"
        assert disk.lacks_folder(log, tmp_path / "a") is None
        disk.cut_power(tmp_path)
    assert ids(open_run(writer.uri).trajectories) == names(2)


def test_rows_whose_log_entries_a_checkpoint_has_replaced(tmp_path: Path) -> None:
    with watched_disk() as disk:
        writer = new_writer(tmp_path)
        commit(writer, 0, 110)
        writer.maintain(retention=timedelta(0))
        commit(writer, 110, 112)
        disk.cut_power(tmp_path)
    entries = files.names(f"{writer.uri}/tables/trajectories/_delta_log")
    assert "00000000000000000050.json" not in entries
    assert ids(open_run(writer.uri).trajectories) == names(112)


def test_a_run_that_has_just_ended(tmp_path: Path) -> None:
    """Its end leaves one data file and one checkpoint, and removes everything else at once."""
    with watched_disk() as disk:
        writer = new_writer(tmp_path)
        commit(writer, 0, 25)
        writer.close()
        disk.cut_power(tmp_path)
    assert ids(open_run(writer.uri).trajectories) == names(25)


def test_who_turns_it_off_waits_for_no_disk(tmp_path: Path) -> None:
    with watched_disk() as disk, pytest.MonkeyPatch.context() as patch:
        patch.setenv(FSYNC_VARIABLE, "0")
        writer = new_writer(tmp_path)
        commit(writer, 0, 2)
        writer.close()
    assert disk.syncs == 0
    assert ids(open_run(writer.uri).trajectories) == names(2)

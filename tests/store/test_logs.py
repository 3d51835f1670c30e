"""Logs in a run's folder: bounded, whole lines, in the order in which processes began."""

import os
from pathlib import Path

import pytest

from rollart_flow.store import logs
from rollart_flow.store.logs import BoundedLog, append_to_log, begin_logs, logs_folder, read_logs


@pytest.fixture
def run(tmp_path: Path) -> str:
    begin_logs(str(tmp_path))
    return str(tmp_path)


def test_a_log_keeps_its_first_part_and_its_last(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PART_BYTES", 100)
    log = BoundedLog(run, "rollout", 7)
    for number in range(1000):
        log.append(f"line {number:04}\n")
    log.close()
    (found,) = read_logs(run)
    lines = found.text().splitlines()
    assert lines[0] == "line 0000"
    assert lines[-1] == "line 0999"
    assert found.size_bytes <= logs.PARTS * 100
    assert len(found.paths) == logs.PARTS


def test_a_line_that_is_longer_than_a_part_is_cut(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PART_BYTES", 100)
    log = BoundedLog(run, "rollout", 7)
    log.append("x" * 5000 + "\n")
    log.close()
    assert read_logs(run)[0].size_bytes == 100


def test_a_run_with_many_processes_keeps_the_newest_files(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_FILES", 5)
    for pid in range(10):
        append_to_log(run, "source", pid, f"{pid}\n")
        path = logs_folder(run) / f"source-{pid}.log"
        os.utime(path, (pid, pid))
    assert sorted(log.pid for log in read_logs(run)) == [5, 6, 7, 8, 9]


def test_processes_come_in_the_order_of_their_first_record(run: str) -> None:
    for process, moment in (("b", "01"), ("a", "02"), ("c", "00")):
        append_to_log(run, process, 1, f"2026-01-01T00:00:{moment}Z INFO began\n")
    assert [log.process for log in read_logs(run)] == ["c", "b", "a"]


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    append_to_log(str(tmp_path / "none"), "rollout", 7, "lost\n")
    assert read_logs(str(tmp_path / "none")) == []

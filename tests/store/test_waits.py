"""Reports of what the processes of a run wait for, and the state of the processes."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.store.waits import (
    NamedWait,
    ProcessState,
    begin_waits,
    clear_waits,
    is_stopped,
    read_waits,
    waits_folder,
    write_waits,
)

WAITS = (NamedWait("get_batch(step=3)", 12.5), NamedWait("a source of tasks", 1.0))


def changed(run: str, change: Callable[[dict[str, Any]], None]) -> ProcessState:
    """The state of a process whose report was changed."""
    (path,) = waits_folder(run).glob("*.json")
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))
    (report,) = read_waits(run)
    return report.state


@pytest.fixture
def run(tmp_path: Path) -> str:
    begin_waits(str(tmp_path))
    write_waits(str(tmp_path), "buffer", WAITS)
    return str(tmp_path)


def test_a_report_is_read_as_it_was_written(run: str) -> None:
    (report,) = read_waits(run)
    assert (report.process, report.pid, report.waits) == ("buffer", os.getpid(), WAITS)
    assert report.state is ProcessState.RUNNING
    write_waits(run, "buffer", ())
    assert [each.waits for each in read_waits(run)] == [()]
    assert len(list(waits_folder(run).iterdir())) == 1


def test_the_state_of_a_process_is_seen_without_its_help(run: str) -> None:
    def silent(said: dict[str, Any]) -> None:
        said["at"] -= 60

    def gone(said: dict[str, Any]) -> None:
        ended = subprocess.Popen(["true"])
        ended.wait()
        said["owner"]["pid"] = ended.pid

    assert changed(run, silent) is ProcessState.SILENT
    assert changed(run, gone) is ProcessState.GONE


def test_a_process_that_is_stopped_by_a_signal_is_told_from_one_that_runs() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert is_stopped(process.pid)
        process.kill()
    assert not is_stopped(process.pid)


def test_a_damaged_report_is_left_out(run: str) -> None:
    (waits_folder(run) / "torn.json").write_text('{"process": "bu')
    assert [each.process for each in read_waits(run)] == ["buffer"]


def test_reports_end_with_the_run(run: str) -> None:
    clear_waits(run)
    assert read_waits(run) == []
    with pytest.raises(FileNotFoundError):
        write_waits(run, "buffer", ())


def test_reports_of_a_run_in_s3_are_private_files_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    run = "s3://bucket/runs/mine"
    begin_waits(run)
    write_waits(run, "buffer", WAITS)
    folder = waits_folder(run)
    assert folder.is_relative_to(tmp_path)
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert [each.waits for each in read_waits(run)] == [WAITS]
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    folder.parent.rename(tmp_path / f"rollart-waits-{os.getuid()}")
    with pytest.raises(PermissionError, match="belongs to another user"):
        write_waits(run, "buffer", WAITS)

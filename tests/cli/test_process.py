"""The command as a process of its own: what a shell sees."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from rollart_flow.cli.app import _leave_threads
from tests.cli.shell import COMMAND
from tests.runs import small_run

ROOT = Path(__file__).parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_exit_codes_and_streams(tmp_path: Path) -> None:
    small_run(tmp_path, steps=1)
    good = run("query", "small", "select step from steps", "--json", ROLLART_STORE=str(tmp_path))
    assert (good.returncode, good.stderr) == (0, "")
    wrong = run("show", "none", ROLLART_STORE=str(tmp_path))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: no run 'none'")
    assert wrong.stderr.count("\n") == 1


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    small_run(tmp_path, steps=1)
    query = ("query", "small", "select * from trajectories", "--json")
    with subprocess.Popen(
        [*COMMAND, *query],
        cwd=ROOT, env={**os.environ, "ROLLART_STORE": str(tmp_path)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert said == ""


def test_an_interrupt_is_a_line_and_not_a_traceback(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import signal\nprint('loading', flush=True)\nsignal.pause()\n")
    with subprocess.Popen(
        [*COMMAND, "plan", str(slow)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("error: interrupted")
    assert err.count("\n") == 1


def test_a_failed_command_ends_though_a_thread_of_it_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    threads = [threading.main_thread(), thread]
    monkeypatch.setattr(
        threading, "enumerate", lambda: [each for each in threads if each.is_alive()]
    )
    thread.start()
    _leave_threads(3)
    over.set()
    thread.join()
    _leave_threads(4)
    assert codes == [3], "only the thread that hangs is a reason"

"""What processes print and log: kept without secrets, also what a killed process printed last."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from rollart_flow.isolation.process import Isolated, IsolatedError
from rollart_flow.resources import logs
from rollart_flow.resources.logs import Printed, copy_last_lines, driver_log
from rollart_flow.store.logs import begin_logs, logs_folder, read_logs
from rollart_flow.store.owner import Owner

LOGGER = logging.getLogger("rollart_flow.something")


def raise_in_reset() -> None:
    raise ValueError("no such tool")


class Failing:
    """A handler of an isolated process that prints and raises."""

    def __call__(self, request: object) -> None:
        print("printed by the process")
        raise_in_reset()


def test_the_driver_keeps_prints_records_and_tracebacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with driver_log(str(tmp_path)):
        print("on the terminal")
        try:
            raise_in_reset()
        except ValueError as error:
            LOGGER.warning("an environment failed", exc_info=error)
    print("after the run")
    (log,) = read_logs(str(tmp_path))
    text = log.text()
    assert (log.process, log.pid) == ("driver", os.getpid())
    assert "on the terminal\n" in text
    assert "WARNING an environment failed\nTraceback" in text
    assert "in raise_in_reset" in text
    assert "after" not in text
    assert capsys.readouterr().out == "on the terminal\nafter the run\n"


def test_secrets_are_not_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", "sk-0123456789")
    with driver_log(str(tmp_path)):
        print("the key is sk-0123456789")
        LOGGER.error("refused: sk-0123456789")
    text = read_logs(str(tmp_path))[0].text()
    assert "sk-" not in text
    assert text.count("***") == 2


async def _call_failing() -> None:
    isolated = await Isolated.start(f"{__name__}:Failing")
    try:
        await isolated.call({})
    except IsolatedError:
        pass
    finally:
        await isolated.kill()


def test_processes_that_the_driver_starts_write_into_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with driver_log(str(tmp_path)):
        asyncio.run(_call_failing())
    text = read_logs(str(tmp_path))[0].text()
    assert "printed by the process" in text
    assert "in raise_in_reset" in text
    assert capfd.readouterr().err == ""


def test_lines_are_copied_whole_and_without_those_of_ray(tmp_path: Path) -> None:
    path = tmp_path / "worker.out"
    path.write_text(":job_id:01\n:actor_name:A\nhello\nhalf a l")
    printed = Printed(str(path))
    assert printed.new_lines() == "hello\n"
    with path.open("a") as stream:
        stream.write("ine\n")
    assert printed.new_lines() == "half a line\n"
    assert printed.new_lines() == ""


def test_what_is_read_of_an_own_file_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "printed"
    path.write_text("many\nlines\n")
    printed = Printed(str(path), own=True)
    assert printed.new_lines() == "many\nlines\n"
    printed.empty()
    assert path.stat().st_size == 0
    path.write_text("more\n")
    assert printed.new_lines() == "more\n"


def test_the_last_lines_of_a_killed_process_are_copied_by_the_driver(tmp_path: Path) -> None:
    begin_logs(str(tmp_path))
    out = tmp_path / "worker.out"
    out.write_text("copied before\nFatal Python error: Segmentation fault\nno line end")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = asdict(Owner.of(process.pid))
        said = {"process": "rollout", "pid": process.pid, "owner": owner}
        said["printed"] = {str(out): len("copied before\n")}
        tail = logs_folder(str(tmp_path)) / f".rollout-{process.pid}.tail"
        tail.write_text(json.dumps(said))
        copy_last_lines(str(tmp_path))
        assert tail.exists()  # it lives
        process.kill()
    copy_last_lines(str(tmp_path))
    (log,) = read_logs(str(tmp_path))
    assert log.text() == "Fatal Python error: Segmentation fault\nno line end\n"
    assert not tail.exists()


def test_a_run_goes_on_without_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "begin_logs", lambda run: None)
    with driver_log(str(tmp_path / "none")):
        print("still here")
    assert not (tmp_path / "none").exists()
    assert not list(Path(tempfile.gettempdir()).glob(f"rollart-printed-*{os.getpid()}"))

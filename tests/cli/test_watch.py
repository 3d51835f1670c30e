"""`rollart watch`: the progress of a run, from its tables."""

import json
import threading
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.spinner import Spinner

from rollart_flow.analysis.activity import ActivityReader
from rollart_flow.cli.progress import ProgressView, render_view
from rollart_flow.cli.stages import following_stages
from rollart_flow.store import RunStatus
from tests.cli.shell import refused, rollart
from tests.runs import new_writer, small_run


def test_in_a_pipe_it_prints_lines_and_ends_with_the_run(tmp_path: Path) -> None:
    small_run(tmp_path, "mine")
    said = rollart("watch", "mine", "--store", str(tmp_path))
    lines = said.out.splitlines()
    assert said.code == 0
    assert lines[0].startswith("mine: version 0: ")
    assert "mine: step 1" in lines[1]
    assert lines[-1] == "mine: finished; `rollart show mine` has its figures"


def test_for_programs_it_prints_one_object_in_a_line(tmp_path: Path) -> None:
    small_run(tmp_path, "mine")
    (line,) = rollart("watch", "mine", "--store", str(tmp_path), "--json").out.splitlines()
    found = json.loads(line)
    assert (found["name"], found["status"], found["step"]) == ("mine", "finished", 4)
    assert found["success"] == {"arithmetic": 0.9375, "frozenlake": 0.9375}
    assert {"in_flight", "turns_per_s", "tokens_per_s", "pending", "trainer"} <= found.keys()


def test_a_run_that_failed_is_exit_code_1(tmp_path: Path) -> None:
    small_run(tmp_path, "mine", RunStatus.FAILED)
    said = rollart("watch", "mine", "--store", str(tmp_path))
    assert said.code == 1
    assert said.out.splitlines()[-1].startswith("mine: failed")


def test_it_goes_on_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_writer(tmp_path, "mine")
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            writer.close(RunStatus.FINISHED)

    monkeypatch.setattr("rollart_flow.cli.watch.time.sleep", sleep)
    said = rollart("watch", "mine", "--store", str(tmp_path), "--every", "7")
    assert said.code == 0
    assert looks == [7.0, 7.0, 7.0]


def test_a_terminal_shows_a_line_for_each_stage(tmp_path: Path) -> None:
    reader = ActivityReader(small_run(tmp_path))
    view = ProgressView("small")
    for progress in reader.read():
        view.take(progress, 0.0)
    view.activity = reader.activity()
    terminal = Console(width=120, file=StringIO(), force_terminal=True)
    terminal.print(render_view(view, Spinner("dots"), 1.0))
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("attempts in flight", "turns/s", "1 engine generating", "tokens/s",
                     "wait for a batch", "trainer"):  # fmt: skip
        assert expected in shown


def test_the_stages_of_the_own_run_are_read_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(tmp_path)
    seen = threading.Event()

    class Watched:
        @property
        def activity(self) -> None:
            return None

        @activity.setter
        def activity(self, value: object) -> None:
            seen.set()

    monkeypatch.setattr("rollart_flow.cli.stages.PERIOD_S", 0.01)
    with following_stages(run.uri, Watched()):
        assert seen.wait(60)


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no run 'none'" in refused(rollart("watch", "none", "--store", str(tmp_path)))

"""Scenarios that fail or hang are rows too, and leave no process."""

import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.chaos import player
from tests.chaos.held import Held
from tests.chaos.matrix import CannotInjectError, Play, Scenario
from tests.chaos.player import Row, played

ARGUMENT = "86398.75"
"""Argument of a process that a scenario leaves, by which it is found."""


def leaving(folder: Path) -> Held:
    subprocess.Popen(["sleep", ARGUMENT], start_new_session=True)
    return Held(acknowledged=1, lost=0, doubled=0, repeated=0, recover_s=None)


def hanging(folder: Path) -> Held:
    held = leaving(folder)
    print(folder, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.pause()
    return held


def losing(folder: Path) -> Held:
    return Held(acknowledged=2, lost=1, doubled=0, repeated=0, recover_s=None)


def lacking(folder: Path) -> Held:
    raise CannotInjectError("libfaketime is not installed")


def raising(folder: Path) -> Held:
    print("step 7/")
    raise ValueError("a\nb")


def played_as(play: Play, limit_s: float = 60) -> tuple[Row, str]:
    name = play.__name__
    return played(Scenario(name, "row", quick=False, limit_s=limit_s, waits=False, play=play))


def sleeping() -> set[int]:
    """Processes that a scenario has left, of this test or of one that was killed."""
    found = psutil.process_iter(["cmdline"])
    return {process.pid for process in found if process.info["cmdline"] == ["sleep", ARGUMENT]}


def test_what_a_scenario_leaves_is_ended() -> None:
    before = sleeping()
    row, _ = played_as(leaving)
    assert (row.failed, row.held and row.held["acknowledged"]) == (None, 1)
    assert not sleeping() - before


def test_a_scenario_that_does_not_end_fails_after_its_limit_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(player, "END_S", 0.2)
    before = sleeping()
    row, output = played_as(hanging, limit_s=1)
    assert row.failed == "not finished after 1 s"
    assert not sleeping() - before
    assert not any(Path(folder).exists() for folder in output.splitlines())


def test_a_scenario_that_loses_rows_fails() -> None:
    row, _ = played_as(losing)
    assert (row.failed, row.held and row.held["lost"]) == ("1 lost, 0 doubled", 1)


def test_a_scenario_that_raises_fails_with_its_error_and_output() -> None:
    row, output = played_as(raising)
    assert (row.failed, row.held) == ("ValueError: a", None)
    assert output.startswith("step 7/")


def test_a_scenario_that_this_machine_cannot_play_is_skipped() -> None:
    row, _ = played_as(lacking)
    assert (row.skipped, row.failed) == ("libfaketime is not installed", None)

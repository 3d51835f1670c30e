"""A scenario in a process of its own, with a time limit; whatever it leaves is ended."""

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from tests.chaos.forked import FORKING, MARK, detach, use_server_of_parent
from tests.chaos.held import Held
from tests.chaos.matrix import CannotInjectError, Play, Scenario

END_S = 20.0
"""How long a scenario may take to end what it started, once its time is over."""
LINES = 40
"""Lines of the output of a scenario that are shown if it fails."""


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one scenario."""

    name: str
    fault: str
    seconds: float
    held: dict[str, Any] | None = None
    """Fields of `Held`, or None if the scenario did not come to its check."""
    skipped: str | None = None
    """What this machine lacks."""
    failed: str | None = None
    """What did not hold."""


_PLAYING: set[str] = set()
"""Marks of the scenarios that play."""


def played(scenario: Scenario) -> tuple[Row, str]:
    """Play a scenario; return its row, and the end of its output."""
    started = time.monotonic()
    mark = f"chaos-{uuid4().hex[:8]}"  # 15 letters at most, as the name of a process
    with TemporaryDirectory(prefix="chaos-") as folder:
        into, log = Path(folder) / "row.json", Path(folder) / "log"
        place = Path(folder) / "place"
        place.mkdir()
        process = FORKING.Process(target=_play, args=(scenario.play, mark, place, into, log))
        _PLAYING.add(mark)
        process.start()
        try:
            process.join(scenario.limit_s)
            late = process.is_alive()
            if late:
                process.terminate()  # which ends its contexts
                process.join(END_S)
        finally:
            _kill(mark)
            process.join()
            _PLAYING.discard(mark)
        said: dict[str, Any] = {"failed": f"its process ended with {process.exitcode}"}
        if late:
            said = {"failed": f"not finished after {scenario.limit_s:g} s"}
        elif into.exists():
            said = json.loads(into.read_text())
        output = log.read_text(errors="replace").splitlines() if log.exists() else []
    seconds = round(time.monotonic() - started, 1)
    return Row(scenario.name, scenario.row, seconds, **said), "\n".join(output[-LINES:])


def kill_playing() -> None:
    """End all processes of all scenarios that play."""
    for mark in list(_PLAYING):
        _kill(mark)


def _kill(mark: str) -> None:
    """End all processes of a scenario, until there are none."""
    while found := [path for path in Path("/proc").glob("[0-9]*") if _marked(path, mark)]:
        for path in found:
            with suppress(ProcessLookupError):
                os.kill(int(path.name), signal.SIGKILL)


def _marked(process: Path, mark: str) -> bool:
    try:
        if "State:\tZ" in (process / "status").read_text():
            return False
        named = (process / "comm").read_text().strip() == mark
        return named or f"{MARK}={mark}".encode() in (process / "environ").read_bytes()
    except OSError:
        return False  # it has gone meanwhile


def _play(play: Play, mark: str, folder: Path, into: Path, log: Path) -> None:
    """Play a scenario in a folder and in this process, and write its outcome to a file."""
    with log.open("w") as output:
        detach(mark, output.fileno())
    use_server_of_parent()
    os.environ[MARK] = mark
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    held: Held | None = None
    said: dict[str, Any] = {}
    try:
        held = play(folder)
        if not held.holds:
            said = {"failed": f"{held.lost} lost, {held.doubled} doubled"}
    except CannotInjectError as error:
        said = {"skipped": str(error)}
    except Exception as error:  # noqa: BLE001  any failure is a row, and the others go on
        traceback.print_exc()
        line = next(iter(str(error).splitlines()), "")
        said = {"failed": f"{type(error).__name__}: {line}"}
    into.write_text(json.dumps({"held": None if held is None else asdict(held), **said}))

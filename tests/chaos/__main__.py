"""Play the scenarios of the matrix: `make chaos`, or `make chaos ONLY=name` for one.

Each scenario runs in a process of its own with a time limit, two at a time, since most of them wait
more than they compute. A table of what was held is printed at the end and written to `chaos.json`.
Exit code 1 where a row was not held.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.chaos.held import Held
from tests.chaos.matrix import CannotInjectError, Scenario, load

RESULT = Path("chaos.json")


@dataclass(frozen=True, slots=True)
class Row:
    """The outcome of one scenario."""

    name: str
    fault: str
    seconds: float
    held: dict[str, Any] | None
    """Fields of `Held`, or None if the scenario did not come to its check."""
    skipped: str | None = None
    """What this machine lacks."""
    failed: str | None = None
    """What did not hold."""


def main(arguments: Sequence[str]) -> int:
    """Play scenarios and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", help="name of one scenario, or the beginning of several")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios at a time")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    known = load()
    only = given.only or ""
    chosen = [each for name, each in known.items() if name.startswith(only)]
    if only in known:
        chosen = [known[only]]
    if not chosen:
        print(f"error: no scenario {only!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    if given.into is not None:
        return _play(known[only], given.into)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen.sort(key=lambda each: -each.limit_s)
    playing: set[subprocess.Popen[bytes]] = set()
    with ThreadPoolExecutor(given.jobs) as threads:
        try:
            rows = list(threads.map(partial(_played, playing=playing), chosen))
        except BaseException:  # Ctrl-C: scenarios end what they started
            threads.shutdown(wait=False, cancel_futures=True)
            for process in playing:
                process.send_signal(signal.SIGTERM)
            raise
    order = list(known)
    rows.sort(key=lambda row: order.index(row.name))
    RESULT.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    Console(width=max(180, Console().width)).print(_table(rows))
    print(f"{len(rows)} scenarios in {(time.monotonic() - started) / 60:.1f} minutes")
    return 1 if any(row.failed for row in rows) else 0


def _played(scenario: Scenario, playing: set[subprocess.Popen[bytes]]) -> Row:
    """Play a scenario in a process of its own; end whatever it leaves after its time."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        into = Path(folder) / "row.json"
        command = [sys.executable, "-m", "tests.chaos", "--only", scenario.name]
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                [*command, "--into", str(into)], stdout=log, stderr=log, start_new_session=True
            )
            playing.add(process)
            try:
                process.wait(scenario.limit_s)
                said: dict[str, Any] = {"failed": f"its process ended with {process.returncode}"}
            except subprocess.TimeoutExpired:
                said = {"failed": f"not finished after {scenario.limit_s:g} s"}
                process.send_signal(signal.SIGTERM)  # which ends its contexts
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                playing.discard(process)
            if into.exists():
                said = json.loads(into.read_text())
            seconds = round(time.monotonic() - started, 1)
            row = Row(scenario.name, scenario.row, seconds, **{"held": None, **said})
            print(f"{row.name}: {row.skipped or row.failed or 'held'} ({seconds:.0f} s)")
            if row.failed:
                log.seek(0)
                sys.stderr.write(log.read()[-2500:])
    return row


def _play(scenario: Scenario, into: Path) -> int:
    """Play a scenario in this process, and write its outcome to a file."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    held: Held | None = None
    said: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        try:
            held = scenario.play(Path(folder))
            if not held.holds:
                said = {"failed": f"{held.lost} lost, {held.doubled} doubled"}
        except CannotInjectError as error:
            said = {"skipped": str(error)}
        except Exception as error:  # noqa: BLE001  any failure is a row, and the others go on
            traceback.print_exc()
            line = next(iter(str(error).splitlines()), "")
            said = {"failed": f"{type(error).__name__}: {line}"}
    into.write_text(json.dumps({"held": None if held is None else asdict(held), **said}))
    return 0


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("fault", "scenario"):
        table.add_column(heading, no_wrap=True)
    for heading in ("acknowledged", "lost", "doubled", "repeated", "recover s", "s"):
        table.add_column(heading, justify="right")
    table.add_column("")
    shown = ""
    for row in rows:
        held = row.held or {}
        recover_s = held.get("recover_s")
        figures = [
            str(held.get(key, "")) for key in ("acknowledged", "lost", "doubled", "repeated")
        ]
        figures += ["" if recover_s is None else f"{recover_s:.1f}", f"{row.seconds:.0f}"]
        said = held.get("note", "")
        if row.skipped:
            said = f"skipped: {row.skipped}"
        elif row.failed:
            said = f"[red]FAILED[/red] {row.failed}"
        table.add_row(row.fault if row.fault != shown else "", row.name, *figures, said)
        shown = row.fault
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

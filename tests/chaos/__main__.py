"""Play the scenarios of the matrix: `make chaos`, or `make chaos ONLY=name` for one.

Each scenario runs in a process of its own with a time limit: two that compute at a time, and beside
them one that mostly waits. What was held is printed and written to `chaos.json` as it comes; a
table ends it. Exit code 1 where a row was not held.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.matrix import Scenario, load
from tests.chaos.player import Row, kill_playing, played

RESULT = Path("chaos.json")
NOTE = 90
"""Letters of a note that the table shows."""


def main(arguments: Sequence[str]) -> int:
    """Play scenarios and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", default="", help="one scenario, or the beginning of several")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios that compute at a time")
    given = parser.parse_args(arguments)
    known = load()
    chosen = [each for name, each in known.items() if name.startswith(given.only)]
    if given.only in known:
        chosen = [known[given.only]]
    if not chosen:
        print(f"error: no scenario {given.only!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # A shell lets commands in the background ignore Ctrl-C, and so all processes that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started = time.monotonic()
    rows = _rows(sorted(chosen, key=lambda each: -each.limit_s), given.jobs)
    Console(width=max(240, Console().width)).print(_table(_in_order(rows, list(known))))
    print(f"{len(rows)} scenarios in {(time.monotonic() - started) / 60:.1f} minutes")
    return 1 if any(row.failed for row in rows) else 0


def _rows(scenarios: Sequence[Scenario], jobs: int) -> list[Row]:
    """Play scenarios; print and write their outcomes as they come."""
    rows: list[Row] = []
    with ExitStack() as ending:
        lanes = {
            waits: ending.enter_context(ThreadPoolExecutor(1 if waits else jobs))
            for waits in (False, True)
        }
        playing = [lanes[each.waits].submit(played, each) for each in scenarios]
        ending.callback(_stop, playing)
        for each in as_completed(playing):
            row, output = each.result()
            rows.append(row)
            said = row.skipped or row.failed or "held"
            print(f"{row.name}: {said} ({row.seconds:.0f} s)", flush=True)
            if row.failed:
                print(output, file=sys.stderr, flush=True)
            RESULT.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return rows


def _stop(playing: Sequence[Future[tuple[Row, str]]]) -> None:
    """Let no scenario begin any more, and end those that play, after Ctrl-C for example."""
    for each in playing:
        each.cancel()
    kill_playing()


def _in_order(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    return sorted(rows, key=lambda row: names.index(row.name))


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, header_style="bold")
    for heading in ("fault", "scenario"):
        table.add_column(heading, no_wrap=True)
    for heading in ("acknowledged", "lost", "doubled", "repeated", "recover s", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
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
        table.add_row(row.fault if row.fault != shown else "", row.name, *figures, said[:NOTE])
        shown = row.fault
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

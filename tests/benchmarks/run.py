"""Run the benchmarks: `make bench`, or `python -m tests.benchmarks.run store engine` for some.

Each module `bench_*.py` here has `run() -> Iterable[Record]`, which runs in a process of its own
with a time limit. Each figure is written to `bench.json` in the current folder as it comes; one row
says why a benchmark ended early, and the others go on. All together have a time limit, too, and the
longest come last. Exit code 1 where a goal is missed or a benchmark failed, 0 where one only cannot
run on this machine or in the time that is left. Those whose goals are no times come first, two at
once; each of the others has the machine for itself.
"""

import importlib
import json
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Lock

import psutil
from rich.console import Console
from rich.table import Table

from tests.benchmarks.records import CannotRunError, Record, unmeasured

RESULT = Path("bench.json")
TOTAL_S = 2400.0
LIMIT_S = 240.0
LIMITS_S: Mapping[str, float] = {
    "images": 900.0,
    "offline": 420.0,
    "paper": 420.0,
    "pools": 420.0,
    "predict": 900.0,
    "preferences": 420.0,
    "schedules": 300.0,
    "simulation": 420.0,
    "trackers": 600.0,
    "trl": 600.0,
    "ui": 420.0,
    "weights": 480.0,
}
"""Time limits of the benchmarks that need more than `LIMIT_S`."""


UNTIMED = frozenset(("images", "learning", "offline", "preferences", "trl_losses"))
"""Benchmarks with goals for successes, steps and errors, whatever the speed of the machine.

`images` has one for a time too, that of a box, which is a third of its goal even beside another
benchmark.
"""


class Row(Record):
    """A row of `bench.json`."""

    seconds: float
    """Time from the start of the benchmark to this figure."""


def main(
    names: Sequence[str],
    package: str = "tests.benchmarks",
    limits_s: Mapping[str, float] = LIMITS_S,
) -> int:
    """Run the benchmarks of these names in a package, or all of them, and return the exit code."""
    known = benchmarks(package)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: no benchmark {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    lock = Lock()
    deadline = time.monotonic() + TOTAL_S

    def measure(name: str) -> None:
        print(f"{name} ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        limit_s, left_s = limits_s.get(name, LIMIT_S), deadline - started
        for found in _measure(name, f"{package}.bench_{name}", limit_s, left_s):
            with lock:
                rows.append(Row(**found, seconds=round(time.monotonic() - started, 1)))
                RESULT.write_text(json.dumps(rows, indent=1) + "\n")
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    ordered = names or sorted(known, key=lambda name: max(LIMIT_S, limits_s.get(name, 0.0)))
    with ThreadPoolExecutor(2) as two:
        deque(two.map(measure, [name for name in ordered if name in UNTIMED]), 0)
    for name in ordered:
        if name not in UNTIMED:
            measure(name)
    Console().print(_table(rows))
    return 1 if any(row["holds"] is False for row in rows) else 0


def benchmarks(package: str) -> list[str]:
    """Return the names of the benchmarks of a package."""
    folders = importlib.import_module(package).__path__
    files = {path.stem for folder in folders for path in Path(folder).glob("bench_*.py")}
    return sorted(name.removeprefix("bench_") for name in files)


def _measure(name: str, module: str, limit_s: float, left_s: float) -> Iterator[Record]:
    if left_s <= 0:
        yield unmeasured(name, f"not started: {_together()}")
        return
    context = get_context("spawn")
    results, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(name, module, sender))
    process.start()
    sender.close()
    deadline, answers = time.monotonic() + min(limit_s, left_s), True
    try:
        while answers := results.poll(max(0.0, deadline - time.monotonic())):
            found = results.recv()
            if found is None:
                return
            yield found
        if left_s < limit_s:
            yield unmeasured(name, f"not finished: {_together()}")
        else:
            yield unmeasured(name, f"not finished after {limit_s:g} s", holds=False)
    except EOFError:
        process.join()
        yield unmeasured(name, f"its process ended with {process.exitcode}", holds=False)
    finally:
        _end(process, 10 if answers else 0)


def _together() -> str:
    return f"all benchmarks together have {TOTAL_S:g} s"


def _run(name: str, module: str, results: "Connection[Record | None, None]") -> None:
    """Send the figures of a benchmark, and None at the end; runs in the child process."""
    try:
        for found in importlib.import_module(module).run():
            results.send(found)
    except (CannotRunError, ImportError) as error:
        results.send(unmeasured(name, f"cannot run here: {_line(error)}"))
    except Exception as error:  # noqa: BLE001  any failure is a row, and the others go on
        traceback.print_exc()
        results.send(unmeasured(name, f"{type(error).__name__}: {_line(error)}", holds=False))
    results.send(None)


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def _end(process: BaseProcess, seconds: float) -> None:
    """Let a process exit within a time; kill it and its descendants if it does not."""
    here = psutil.Process(process.pid) if process.is_alive() else None
    descendants = here.children(recursive=True) if here else []
    process.join(seconds)
    for other in descendants:
        if other.is_running():
            other.kill()
    process.kill()
    process.join()


def _table(rows: list[Row]) -> Table:
    table = Table("figure", "value", "unit", "goal", "", "beside it", "after")
    for row in rows:
        mark = {True: "holds", False: "MISSED", None: ""}[row["holds"]]
        value = "" if row["value"] is None else f"{row['value']:g}"
        beside = row["skipped"] or row["peer"] or ""
        table.add_row(
            row["name"],
            value,
            row["unit"],
            row["goal"] or "",
            mark,
            beside,
            f"{row['seconds']:g} s",
        )
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

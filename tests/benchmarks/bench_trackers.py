"""What trackers, metrics and spans cost a step of the demo, with and without them in turn.

Seconds of a step, and CPU seconds of the process that runs the demo inline, as medians of the
ratios of two runs in turn. The window of a run begins some steps after its trackers have started:
imports and the creation of their stores happen once, and have a row of their own. So has the CPU of
the tracking process, which takes processors that the run leaves.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil

from rollart_flow import runner
from rollart_flow.pipeline import load_pipeline
from rollart_flow.telemetry import OnProgress, Progress, ProgressKind
from tests.benchmarks.records import CannotRunError, Record, record

DEMO = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
STARTED, FIRST, LAST, ROUNDS = 10, 14, 34, 3
"""Step at which the trackers are awaited; first and last step of the window; pairs of runs."""
START_S = 300.0
"""Longest time until all trackers have started [s]."""
TRACKERS = (
    "[\"tensorboard\", \"wandb\", \"trackio\", \"mlflow\", \"prometheus(port=0)\", "
    "\"otel(file='spans.jsonl')\"]"
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Seconds of one run, each of a step but for `start`."""

    step: float
    own: float
    """CPU of the process that runs the demo."""
    beside: float
    """CPU of the processes that track."""
    start: float
    """CPU of the processes that track until each tracker had a record."""


def run() -> Iterator[Record]:
    """Give the ratios and the CPU of the tracking process; takes about three minutes."""
    pairs = [(_measure("[]"), _measure(TRACKERS)) for _ in range(ROUNDS)]
    load = f"load {os.getloadavg()[0]:.0f}"
    step_s = statistics.median(without.step for without, _ in pairs)
    step = statistics.median(tracked.step / without.step for without, tracked in pairs)
    worst = max(tracked.step / without.step for without, tracked in pairs)
    own_s = statistics.median(without.own for without, _ in pairs)
    own = statistics.median(tracked.own / without.own for without, tracked in pairs)
    said = f"{ROUNDS} pairs of runs, {load}"
    yield record(
        "trackers: time of a step of the demo with all of them, by that without", step, "",
        at_most=1.02, peer=f"{1000 * step_s:.0f} ms without, at worst {worst:.3f}, {said}",
    )  # fmt: skip
    yield record(
        "trackers: CPU of the run for a step with all of them, by that without", own, "",
        at_most=1.02, peer=f"{1000 * own_s:.0f} ms without, {said}",
    )  # fmt: skip
    beside = statistics.median(tracked.beside for _, tracked in pairs)
    start = statistics.median(tracked.start for _, tracked in pairs)
    yield record("trackers: CPU of the tracking process for a step", 1000 * beside, "ms", peer=load)
    yield record("trackers: CPU of the tracking process until all run", start, "s", peer=load)


def _measure(trackers: str) -> Cost:
    """Run the demo once with these trackers."""
    seen: dict[int, tuple[float, float, float]] = {}
    start = 0.0
    with tempfile.TemporaryDirectory() as folder:

        def on_progress(progress: Progress) -> None:
            nonlocal start
            if progress.kind is not ProgressKind.STEP:
                return
            step = progress.row["step"]
            if step == STARTED:
                _await_cursors(Path(folder) / "demo" / "trackers", len(json.loads(trackers)))
                start = _children()
            if step in (FIRST, LAST):
                seen[step] = time.perf_counter(), time.process_time(), _children()

        _run(folder, trackers, on_progress)
    step, own, beside = (
        (b - a) / (LAST - FIRST) for a, b in zip(seen[FIRST], seen[LAST], strict=True)
    )
    return Cost(step, own, beside, start)


def _run(folder: str, trackers: str, on_progress: OnProgress) -> None:
    changes = {"steps": str(LAST), "every": "100", "warm_start": "5", "pipeline.trackers": trackers}
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": folder, "TRACKIO_DIR": folder}
    offline["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    loaded = load_pipeline(DEMO, changes)
    here = Path.cwd()
    os.chdir(folder)
    try:
        with patch.dict(os.environ, offline):
            runner.run(
                loaded, store=folder, name="demo", executor="inline", on_progress=on_progress
            )
    finally:
        os.chdir(here)


def _await_cursors(folder: Path, trackers: int) -> None:
    """Wait until every tracker has a record; the steps until the window begins make up for it."""
    deadline = time.monotonic() + START_S
    while len(list(folder.glob("*.json"))) < trackers:
        if time.monotonic() > deadline:
            raise CannotRunError(f"not every tracker had a record {START_S:.0f} s after it started")
        time.sleep(0.05)


def _children() -> float:
    """CPU seconds of the processes that track, their imports included."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        total += sum(process.cpu_times()[:2])
    return total


if __name__ == "__main__":
    for row in run():
        print(row, file=sys.stderr)

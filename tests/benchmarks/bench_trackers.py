"""What trackers, metrics and spans cost a step of the demo, with and without them in turn.

CPU seconds of the process that runs the demo inline, by step, as a ratio of the medians of runs in
turn: other programs on the machine change them little. The first steps of a run, in which imports
happen, do not count. The tracking process has a row of its own: it runs at low priority, so that a
machine with a free core hides it.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import psutil

from rollart_flow import runner
from rollart_flow.pipeline import load_pipeline
from rollart_flow.telemetry import Progress, ProgressKind
from tests.benchmarks.records import Record, record

DEMO = Path(__file__).parents[2] / "pipelines" / "two_domains.py"
FIRST, LAST, ROUNDS = 3, 13, 3
TRACKERS = (
    "[\"tensorboard\", \"wandb\", \"trackio\", \"mlflow\", \"prometheus(port=0)\", "
    "\"otel(file='spans.jsonl')\"]"
)  # fmt: skip


def run() -> Iterator[Record]:
    """Give the ratio of the step, and the CPU of the tracking process; takes some minutes."""
    measured: dict[str, list[tuple[float, float]]] = {"[]": [], TRACKERS: []}
    for _ in range(ROUNDS):
        for trackers, found in measured.items():
            found.append(_measure(trackers))
    own = {key: statistics.median(cpu for cpu, _ in found) for key, found in measured.items()}
    beside = statistics.median(cpu for _, cpu in measured[TRACKERS])
    load = f"load {os.getloadavg()[0]:.0f}"
    ratio = own[TRACKERS] / own["[]"]
    said = f"{1000 * own['[]']:.0f} ms of CPU without, {ROUNDS} runs each in turn, {load}"
    yield record(
        "trackers: CPU of a step of the demo with all of them, by that without", ratio, "",
        at_most=1.02, peer=said,
    )  # fmt: skip
    yield record("trackers: CPU of the tracking process for a step", 1000 * beside, "ms", peer=load)


def _measure(trackers: str) -> tuple[float, float]:
    """CPU seconds of a step in this process, and in the one that tracks."""
    seen: dict[int, tuple[float, float]] = {}

    def on_progress(progress: Progress) -> None:
        if progress.kind is ProgressKind.STEP and progress.row["step"] in (FIRST, LAST):
            seen[progress.row["step"]] = (time.process_time(), _children())

    changes = {"steps": str(LAST), "every": "100", "warm_start": "5", "pipeline.trackers": trackers}
    with tempfile.TemporaryDirectory() as folder:
        offline = {"WANDB_MODE": "offline", "WANDB_DIR": folder, "TRACKIO_DIR": folder}
        offline["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        loaded = load_pipeline(DEMO, changes)
        here = Path.cwd()
        os.chdir(folder)
        try:
            with patch.dict(os.environ, offline):
                runner.run(loaded, store=folder, executor="inline", on_progress=on_progress)
        finally:
            os.chdir(here)
    steps = LAST - FIRST
    own, beside = (b - a for a, b in zip(seen[FIRST], seen[LAST], strict=True))
    return own / steps, beside / steps


def _children() -> float:
    """CPU seconds of the processes that track, their imports included."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        total += sum(process.cpu_times()[:2])
    return total


if __name__ == "__main__":
    for row in run():
        print(row, file=sys.stderr)

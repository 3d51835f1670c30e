"""CPU of a trajectory's way through a run, by process, on Ray and inline.

Single-turn arithmetic with the tiny policy, 128 trajectories a step, 8 updates a batch, alpha 1.
The first steps, in which processes import their packages, do not count. CPU seconds are those of
the operating system, so that other programs on the machine change them little.
"""

import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.telemetry import Progress, ProgressKind
from tests.benchmarks.records import Record, record

FIRST, LAST = 5, 45
BATCH = 128
PIPELINE = f"""
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic

policy = Policy.tiny()
trajectories = rollout(tasks(Arithmetic(digits=2), group_size=8), policy, max_tokens=8)
batches = buffer(reward(trajectories), batch_size={BATCH}, alpha=1)
steps = train(batches, policy, grpo(), steps={LAST}, minibatches=4, epochs=2)
pipeline = Pipeline("path", steps)
"""
COMPUTING = {"ray": ("EngineWorker", "TrainWorker"), "inline": ("TrainWorker", "native")}
"""Parts of the names of the processes or threads that compute: engine and trainer."""

Snapshot = Mapping[tuple[str, int], float]
"""CPU seconds by name and number of a process, or of a thread."""


def run() -> Iterator[Record]:
    """CPU by process; takes about two minutes."""
    for executor, goal in (("ray", 3.0), ("inline", 0.8)):
        parts, rate = _measure(executor)
        rest = sum(ms for name, ms in parts.items() if not _computes(executor, name))
        yield record(
            f"path: CPU of a trajectory besides trainer and engine, {executor}"
            + ("; its loop has the engine" if executor == "inline" else ""),
            rest,
            "ms",
            at_most=goal if executor == "ray" else None,
            peer=f"{rate:.0f} trajectories/s; "
            + ", ".join(
                f"{name} {ms:.2f}"
                for name, ms in sorted(parts.items(), key=lambda part: -part[1])[:8]
            ),
        )


def _computes(executor: str, name: str) -> bool:
    return any(part in name for part in COMPUTING[executor])


def _measure(executor: str) -> tuple[Mapping[str, float], float]:
    """CPU milliseconds of a trajectory by process or thread, and trajectories per second."""
    seen: dict[int, Snapshot] = {}
    ended: dict[int, float] = {}
    snapshot: Callable[[], Snapshot] = _processes if executor == "ray" else _threads

    def on_progress(progress: Progress) -> None:
        if progress.kind is ProgressKind.STEP and (step := progress.row["step"]) in (FIRST, LAST):
            seen[step] = snapshot()
            ended[step] = progress.row["finished_at"].timestamp()

    with tempfile.TemporaryDirectory() as folder:
        loaded = load_source(PIPELINE, Path(folder) / "path.py")
        runner.run(loaded, store=folder, executor=executor, on_progress=on_progress)
    count = (LAST - FIRST) * BATCH
    parts: defaultdict[str, float] = defaultdict(float)
    for key, seconds in seen[LAST].items():
        parts[key[0]] += 1000 * (seconds - seen[FIRST].get(key, 0.0)) / count
    return parts, count / (ended[LAST] - ended[FIRST])


def _processes() -> Snapshot:
    this = psutil.Process()
    found: dict[tuple[str, int], float] = {("driver", this.pid): sum(this.cpu_times()[:2])}
    for process in this.children(recursive=True):
        name = (process.cmdline() or [process.name()])[0]
        found[name.rsplit("/", 1)[-1], process.pid] = sum(process.cpu_times()[:2])
    return found


def _threads() -> Snapshot:
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    return {
        (names.get(each.id, "native"), each.id): each.user_time + each.system_time
        for each in psutil.Process().threads()
    }


if __name__ == "__main__":
    for row in run():
        print(row, file=sys.stderr)

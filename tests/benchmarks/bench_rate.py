"""Trajectories a second with an engine, an environment and a trainer that do nothing.

What remains is the way of a trajectory through a run, durable in the table. Rate and memory are
those after the first steps; the memory is the largest growth of a process from a quarter of the
run to its end. At both it is the least over a sixteenth of the run, since a checkpoint of the log
takes 30 MB for some seconds: the Delta library starts up to a hundred threads for it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.benchmarks.records import Record, record

PLUGINS = Path(__file__).parent / "plugins"
BATCH, FIRST = 512, 8
STEPS = int(os.environ.get("ROLLART_BENCH_STEPS", 400))
"""Steps of a run; 400 are 204,800 trajectories."""
Memory = Mapping[int, int]
"""Resident memory of each process [MB], by its number."""
GOALS = {"ray": 1000, "inline": 2000}
PIPELINE = """
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs.base import Domain, Environment
from rollart_flow.types import Task


class Idle(Environment):
    inline = True
    version = "idle/1"

    def reset(self, seed, task):
        return "go", {}

    def step(self, action):
        return "", 1.0, True, False, {}


@dataclass(frozen=True)
class Nothing(Domain):
    name: ClassVar[str] = "nothing"
    environment: ClassVar[type[Environment]] = Idle
    max_turns: ClassVar[int] = 1

    def make(self):
        return Idle()

    def tasks(self, split, seed):
        return (Task(f"t-{number}", self.name) for number in count())


policy = Policy.tiny(hidden=16, layers=1, heads=2, engine="idle")
trajectories = rollout(tasks(Nothing(), group_size=8), policy, max_tokens=4)
batches = buffer(reward(trajectories), batch_size=<batch>, alpha=1)
steps = train(
    batches, policy, grpo(), steps=<steps>, backend="idle", checkpoint_every=1000, keep_versions=2
)
pipeline = Pipeline("rate", steps)
"""


def run() -> Iterator[Record]:
    """Rates and growth of memory of both executors; takes about four minutes."""
    sys.path.insert(0, str(PLUGINS))
    os.environ["PYTHONPATH"] = os.pathsep.join((str(PLUGINS), os.environ.get("PYTHONPATH", "")))
    for executor, goal in GOALS.items():
        rate, growth = _measure(executor)
        peer = f"{STEPS * BATCH} trajectories"
        yield record(
            f"rate: trajectories with idle engine, environment and trainer, {executor}",
            rate,
            "1/s",
            at_least=goal,
            peer=peer,
        )
        yield record(
            f"rate: growth of memory from a quarter of the run to its end, {executor}",
            growth,
            "MB",
            at_most=50,
            peer=peer,
        )


def _measure(executor: str) -> tuple[float, float]:
    """Trajectories per second, and MB by which a process grew."""
    from rollart_flow import runner
    from rollart_flow.pipeline.loading import load_source
    from rollart_flow.telemetry import Progress, ProgressKind

    ended: dict[int, float] = {}
    before, after = list[Memory](), list[Memory]()

    def on_progress(progress: Progress) -> None:
        if progress.kind is ProgressKind.STEP:
            step = progress.row["step"]
            ended[step] = progress.row["finished_at"].timestamp()
            for since, found in ((STEPS // 4, before), (STEPS - STEPS // 16, after)):
                if since < step <= since + STEPS // 16:
                    found.append(_memory_mb())

    text = PIPELINE.replace("<batch>", str(BATCH)).replace("<steps>", str(STEPS))
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_source(text, Path(folder) / "rate.py")
        runner.run(loaded, store=folder, executor=executor, on_progress=on_progress)
    rate = (STEPS - FIRST) * BATCH / (ended[STEPS] - ended[FIRST])
    stayed = set.intersection(*(set(found) for found in (*before, *after)))
    return rate, max(_least_mb(after, pid) - _least_mb(before, pid) for pid in stayed)


def _memory_mb() -> Memory:
    this = psutil.Process()
    return {p.pid: p.memory_info().rss >> 20 for p in (this, *this.children(True))}


def _least_mb(found: list[Memory], pid: int) -> int:
    return min(each[pid] for each in found)


if __name__ == "__main__":
    for row in run():
        print(row, file=sys.stderr)

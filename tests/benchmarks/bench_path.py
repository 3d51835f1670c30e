"""CPU of a trajectory's way through a run, by process, on Ray and inline.

Arithmetic with the tiny policy, 128 trajectories a step, 8 updates a batch, alpha 1; once with one
turn a trajectory, and once with several. The first steps, in which processes import their packages,
do not count. CPU seconds are those of the operating system, so that other programs on the machine
change them little.
"""

import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import psutil

from rollart_flow import runner
from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.pipeline.loading import load_source
from rollart_flow.telemetry import Progress, ProgressKind
from tests.benchmarks.records import Record, record

FIRST, LAST = 5, 21
BATCH = 128
TURNS = 9
PIPELINE = """
from dataclasses import dataclass

from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic
from rollart_flow.envs.arithmetic import ArithmeticEnvironment


class InTurns(ArithmeticEnvironment):
    def reset(self, seed, task):
        self.turn = 0
        return super().reset(seed, task)

    def step(self, action):
        self.turn += 1
        observation, value, _, truncated, info = super().step(action)
        return observation, value, self.turn == <turns>, truncated, info


@dataclass(frozen=True)
class Sums(Arithmetic):
    environment = InTurns

    def make(self):
        return InTurns(self)


policy = Policy.tiny()
trajectories = rollout(
    tasks(Sums(digits=2), group_size=8), policy, max_tokens=8, max_turns=<turns>
)
batches = buffer(reward(trajectories), batch_size=<batch>, alpha=1)
steps = train(batches, policy, grpo(), steps=<steps>, minibatches=4, epochs=2)
pipeline = Pipeline("path", steps)
"""
ENGINE = "steps of the engine"
COMPUTING = {"ray": ("EngineWorker", "TrainWorker"), "inline": ("TrainWorker", "native", ENGINE)}
"""Parts of the names of the processes or threads that compute: engine and trainer."""
OURS = ("driver", "BufferActor", "CoordinatorActor", "MapWorker")
"""Parts of the names of the processes that handle trajectories on Ray."""
GOALS = {"ray": (3.0, 0.5), "inline": (0.8, 0.2)}
"""Most CPU of a trajectory of one turn, and of each further turn, by executor [ms]."""

Snapshot = Mapping[int, tuple[str, float]]
"""Name and CPU seconds of each process, or thread, by its number: Ray renames processes with their
tasks, so that a name says nothing about what was counted before."""


def run() -> Iterator[Record]:
    """CPU by process; takes about two minutes."""
    for executor, (goal, further) in GOALS.items():
        one, rate = _measure(executor, 1)
        yield record(
            f"path: CPU of a trajectory besides trainer and engine, {executor}",
            _rest(executor, one),
            "ms",
            at_most=goal,
            peer=f"{rate:.0f} trajectories/s; {_largest(one)}",
        )
        many, rate = _measure(executor, TURNS)
        yield record(
            f"path: CPU of each further turn besides trainer and engine, {executor}",
            (_ours(executor, many) - _ours(executor, one)) / (TURNS - 1),
            "ms",
            at_most=further,
            peer=f"{TURNS} turns: {rate:.0f} trajectories/s; {_largest(many)}; with Ray's own "
            f"processes {(_rest(executor, many) - _rest(executor, one)) / (TURNS - 1):.2f} ms",
        )


def _rest(executor: str, parts: Mapping[str, float]) -> float:
    return sum(ms for name, ms in parts.items() if not _computes(executor, name))


def _ours(executor: str, parts: Mapping[str, float]) -> float:
    """CPU of what handles trajectories, without Ray's own processes, which work by the second."""
    if executor == "inline":
        return _rest(executor, parts)
    return sum(ms for name, ms in parts.items() if any(each in name for each in OURS))


def _largest(parts: Mapping[str, float]) -> str:
    largest = sorted(parts.items(), key=lambda part: -part[1])[:8]
    return ", ".join(f"{name} {ms:.2f}" for name, ms in largest)


def _computes(executor: str, name: str) -> bool:
    return any(part in name for part in COMPUTING[executor])


def _measure(executor: str, turns: int) -> tuple[Mapping[str, float], float]:
    """CPU milliseconds of a trajectory by process or thread, and trajectories per second."""
    seen: dict[int, Snapshot] = {}
    ended: dict[int, float] = {}
    engine_s = [0.0]
    step = EmbeddedEngine._step

    def timed_step(engine: EmbeddedEngine) -> None:
        began = time.thread_time()
        step(engine)
        engine_s[0] += time.thread_time() - began

    def snapshot() -> Snapshot:
        return _processes() if executor == "ray" else _threads(engine_s[0])

    def on_progress(progress: Progress) -> None:
        if progress.kind is ProgressKind.STEP and (step := progress.row["step"]) in (FIRST, LAST):
            seen[step] = snapshot()
            ended[step] = progress.row["finished_at"].timestamp()

    text = PIPELINE
    for name, value in (("turns", turns), ("batch", BATCH), ("steps", LAST)):
        text = text.replace(f"<{name}>", str(value))
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(EmbeddedEngine, "_step", timed_step),
    ):
        loaded = load_source(text, Path(folder) / "path.py")
        runner.run(loaded, store=folder, executor=executor, on_progress=on_progress)
    count = (LAST - FIRST) * BATCH
    parts: defaultdict[str, float] = defaultdict(float)
    for number, (name, seconds) in seen[LAST].items():
        name, before = seen[FIRST].get(number, (name, 0.0))
        parts[name] += 1000 * (seconds - before) / count
    return parts, count / (ended[LAST] - ended[FIRST])


def _processes() -> Snapshot:
    this = psutil.Process()
    found = {this.pid: ("driver", sum(this.cpu_times()[:2]))}
    for process in this.children(recursive=True):
        name = (process.cmdline() or [process.name()])[0].rsplit("/", 1)[-1]
        found[process.pid] = name, sum(process.cpu_times()[:2])
    return found


def _threads(engine_s: float) -> Snapshot:
    """CPU by thread; that of the engine, which computes in the loop of the actors, apart."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = {
        each.id: (names.get(each.id, "native"), each.user_time + each.system_time)
        for each in psutil.Process().threads()
    }
    loop = next(number for number, (name, _) in found.items() if name == "actors")
    return found | {loop: ("actors", found[loop][1] - engine_s), 0: (ENGINE, engine_s)}


if __name__ == "__main__":
    for row in run():
        print(row, file=sys.stderr)

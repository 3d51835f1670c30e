"""How much a simulation costs: a cluster of 3,000 GPUs, and the cost of a turn as it grows.

Each size runs in a process of its own, so that its memory is its own. For the cost of a turn the
smaller one runs again and again while the whole one does, a second each in turns: a machine's speed
drifts by more than is measured here.
"""

import cProfile
import multiprocessing
import os
import resource
import signal
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple, TypeVar

from rollart_flow.control.schedules import rollart
from rollart_flow.simulation.cluster import simulate
from rollart_flow.simulation.hardware import H800, QWEN3_32B
from rollart_flow.simulation.latencies import LogNormal, Uniform
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.workloads import Domain
from tests.benchmarks.records import Record, record

GPUS = 3_000
ENVIRONMENTS = 20_000
BATCH = 4_096
STEPS = 5
SMALLER = 20
"""How many times smaller the smaller cluster is: 1,000 environments."""
GOAL_S, GOAL_GB = 300, 4.0
GOAL_WORK, GOAL_TIME = 1.05, 1.25
"""A turn is the same work at any size. It takes longer where what 20,000 environments hold
(0.4 GB) is more than the processor's caches do."""

T = TypeVar("T")

TEN_TURNS = Domain(
    "ten-turns", turns=Uniform(1, 19), prompt=LogNormal(800, 0.3), observation=LogNormal(300, 0.5),
    response=LogNormal(200, 0.7, most=4_000), reset_s=LogNormal(5, 0.6), step_s=LogNormal(1, 0.8),
    task_spread=0.2,
)  # fmt: skip
ALPHA = 4
"""(1 + alpha) batches in flight: 20,480 attempts, for 20,000 environments."""


def cluster(part: int = 1) -> Scenario:
    """One part of the cluster, with as many GPUs for each environment as the whole."""
    training = GPUS // 6 // part // 4 * 4
    return Scenario(
        f"1/{part} of {GPUS} GPUs",
        QWEN3_32B,
        (TEN_TURNS,),
        (Pool(H800, (GPUS // part - training) // 4 * 4),),
        Pool(H800, training),
        batch_size=BATCH // part // 8 * 8,
        group_size=8,
        tensor_parallel=4,
        environments=ENVIRONMENTS // part,
    )


class Cost(NamedTuple):
    """Of one simulation."""

    seconds: float
    """CPU time."""
    turns: int
    at_once: int
    """Most environments."""
    memory_gb: float
    """Peak of the process."""

    @property
    def turn_ms(self) -> float:
        """CPU time of a turn."""
        return 1e3 * self.seconds / self.turns


def measure(part: int) -> Cost:
    """What a part costs."""
    before = time.process_time()
    left = simulate(cluster(part), rollart(ALPHA), steps=STEPS)
    seconds = time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return Cost(seconds, left.turns, left.most_running, memory)


def _over_and_over(part: int, told: Connection) -> None:
    """Measure a part, and tell, until nobody listens."""
    while True:
        told.send(measure(part))


def in_turns(slice_s: float = 1.0) -> tuple[Cost, list[Cost]]:
    """What the whole costs, and a part of it as often as it ends meanwhile."""
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
    processes = [
        spawn.Process(target=_over_and_over, args=(part, pipe[1]), daemon=True)
        for part, pipe in zip((1, SMALLER), pipes, strict=True)
    ]
    (whole, _), (part, _) = pipes
    parts: list[Cost] = []
    for process in processes:
        process.start()
        _signal(process, signal.SIGSTOP)
    try:
        while not whole.poll():
            for process in processes:
                _signal(process, signal.SIGCONT)
                time.sleep(slice_s)
                _signal(process, signal.SIGSTOP)
            while part.poll():
                parts.append(part.recv())
        return whole.recv(), parts
    finally:
        for process in processes:
            process.kill()
            process.join()


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    if process.pid is not None:
        os.kill(process.pid, number)


def calls(part: int) -> float:
    """Calls of functions per turn, over two steps."""
    profile = cProfile.Profile()
    left = profile.runcall(simulate, cluster(part), rollart(ALPHA), steps=2)
    return sum(entry.callcount for entry in profile.getstats()) / left.turns


def alone(function: Callable[[int], T], part: int) -> T:
    """The function of a part, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, part).result()


def run() -> list[Record]:
    """Whole cluster and part of it."""
    whole, parts = in_turns()
    assert whole.at_once == ENVIRONMENTS, f"{whole.at_once} environments ran at once"
    part_ms = statistics.median(part.turn_ms for part in parts)
    whole_calls, part_calls = alone(calls, 1), alone(calls, SMALLER)
    return [
        record(
            f"simulation: {STEPS} steps of {BATCH} on {GPUS} GPUs",
            whole.seconds,
            "s",
            at_most=GOAL_S,
            peer=f"{whole.at_once:,} environments at once, {whole.turns:,} turns",
        ),
        record(
            "simulation: peak memory of that",
            whole.memory_gb,
            "GB",
            at_most=GOAL_GB,
        ),
        record(
            "simulation: work of a turn [calls], against 1/20 of the cluster",
            whole_calls / part_calls,
            "x",
            at_most=GOAL_WORK,
            peer=f"{whole_calls:.1f}; {part_calls:.1f}",
        ),
        record(
            "simulation: time of a turn, against 1/20 of the cluster",
            whole.turn_ms / part_ms,
            "x",
            at_most=GOAL_TIME,
            peer=f"{whole.turn_ms:.3f} ms; {part_ms:.3f} ms with {parts[0].at_once:,} environments",
        ),
    ]

"""How much a simulation costs: a cluster of 3,000 GPUs, and the cost of a turn as it grows.

Each size runs in a process of its own, so that its memory is its own.
"""

import cProfile
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

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


def measure(part: int) -> tuple[float, int, int, float]:
    """(seconds, turns, most environments at once, peak memory [GB]) of a simulation."""
    before = time.perf_counter()
    left = simulate(cluster(part), rollart(ALPHA), steps=STEPS)
    seconds = time.perf_counter() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return seconds, left.turns, left.most_running, memory


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
    """Whole cluster and part of it, one after the other."""
    less = [alone(measure, SMALLER) for _ in range(5)]
    seconds, turns, at_once, memory = alone(measure, 1)
    assert at_once == ENVIRONMENTS, f"{at_once} environments ran at once"
    whole_s, part_s = seconds / turns, statistics.median(s / t for s, t, _, _ in less)
    whole_calls, part_calls = alone(calls, 1), alone(calls, SMALLER)
    return [
        record(
            f"simulation: {STEPS} steps of {BATCH} on {GPUS} GPUs",
            seconds,
            "s",
            at_most=GOAL_S,
            peer=f"{at_once:,} environments at once, {turns:,} turns",
        ),
        record(
            "simulation: peak memory of that",
            memory,
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
            whole_s / part_s,
            "x",
            at_most=GOAL_TIME,
            peer=f"{1e3 * whole_s:.3f} ms; {1e3 * part_s:.3f} ms with {less[0][2]:,} environments",
        ),
    ]

"""How much a simulation costs: a cluster of 3,000 GPUs, and the cost of a turn as it grows.

Each size runs in a process of its own, so that its memory is its own.
"""

import multiprocessing
import os
import resource
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

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
GOAL_S, GOAL_GB, GOAL_GROWTH = 300, 4.0, 1.25
HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Objects in pages of 2 MB, where the machine lets programs ask for them: what is left of the
growth is the simulation's own. In pages of 4 KB the objects of 20,000 environments are more than
the processor's table of pages (TLB) holds, so that the same work takes longer."""

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


def measured(part: int, **environment: str) -> tuple[float, int, int, float]:
    """`measure` in a process of its own, started with these environment variables."""
    fresh = multiprocessing.get_context("spawn")
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with ProcessPoolExecutor(1, mp_context=fresh) as process:
            return process.submit(measure, part).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def growth(**environment: str) -> tuple[float, str]:
    """How many times as much a turn of the whole cluster costs as one of the part; the two."""
    less = [measured(SMALLER, **environment) for _ in range(3)]
    seconds, turns, at_once, _ = measured(1, **environment)
    assert at_once == ENVIRONMENTS, f"{at_once} environments ran at once"
    whole = seconds / turns
    part = statistics.median(s / t for s, t, _, _ in less)
    return whole / part, f"{1e3 * whole:.3f} ms; {1e3 * part:.3f} ms at {less[0][2]:,} environments"


def run() -> list[Record]:
    """Whole cluster and part of it, one after the other."""
    seconds, turns, at_once, memory = measured(1)
    huge, huge_ms = growth(**HUGE_PAGES)
    plain, plain_ms = growth()
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
            "simulation: cost of a turn, against 1/20 of the cluster, huge pages",
            huge,
            "x",
            at_most=GOAL_GROWTH,
            peer=huge_ms,
        ),
        record("the same, small pages: misses of the TLB", plain, "x", peer=plain_ms),
    ]

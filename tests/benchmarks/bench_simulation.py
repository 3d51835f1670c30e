"""The cost of a simulation: a cluster of 3,000 GPUs, and the cost of a turn as the cluster grows.

Each timed measurement has its own process, and so its own memory. The cost of a turn is compared
with that in a cluster a twentieth as large, and with that in twenty of those side by side: they
hold as much as the large one, so that only the size differs, not the use of the processor's caches.
The three run in turns, a slice each: a machine's speed drifts by more than the differences. Calls
are counted meanwhile on another core, since their number is the same however long they take.
"""

import asyncio
import cProfile
import multiprocessing
import os
import resource
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from rollart_flow.control.schedule.schedules import rollart
from rollart_flow.simulation.cluster.simulated_cluster import SimulatedCluster, simulate
from rollart_flow.simulation.hardware import H800, QWEN3_32B
from rollart_flow.simulation.latencies import LogNormal, Uniform
from rollart_flow.simulation.record import Record as Simulated
from rollart_flow.simulation.scenario import Pool, Scenario
from rollart_flow.simulation.virtual_time import run as run_simulation
from rollart_flow.simulation.workloads import SimulatedDomain
from tests.benchmarks.records import Record, record

GPUS = 3_000
ENVIRONMENTS = 20_000
BATCH = 4_096
STEPS = 3
SMALLER = 20
"""Factor by which the smaller cluster is smaller: 1,000 environments."""
GOAL_S, GOAL_GB = 180, 4.0
GOAL_WORK, GOAL_SIZE, GOAL_TIME = 1.05, 1.1, 1.25
"""A turn is the same work at any size. It takes longer if the state of 20,000 environments (0.4 GB)
exceeds the processor's caches."""
SLICE_S = 0.3
"""Time that one measurement computes before it is the next one's turn [s]."""

TEN_TURNS = SimulatedDomain(
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
    """The cost of simulations in one process."""

    seconds: float
    """CPU time."""
    turns: int
    at_once: int
    """Largest number of environments at once."""
    memory_gb: float
    """Peak memory of the process."""


def measure(part: int, clusters: int) -> Cost:
    """The cost of `clusters` clusters side by side, each `1 / part` of the whole."""
    before = time.process_time()
    left = run_simulation(_side_by_side(part, clusters))
    seconds = time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    turns, at_once = sum(r.turns for r in left), sum(r.most_running for r in left)
    return Cost(seconds, turns, at_once, memory)


async def _side_by_side(part: int, clusters: int) -> list[Simulated]:
    schedule = rollart(ALPHA)
    scenario = cluster(part)
    runs = (
        SimulatedCluster(scenario, schedule, seed=seed, steps=STEPS).run()
        for seed in range(clusters)
    )
    return await asyncio.gather(*runs)


def _over_and_over(part: int, clusters: int, told: Connection) -> None:
    """Measure and report until the process is killed."""
    while True:
        told.send(measure(part, clusters))


def in_turns(*measured: tuple[int, int]) -> list[list[Cost]]:
    """The costs of each (part, clusters), repeated until each has ended once.

    A part of the cluster alone gets a fifth of the time of the others: it ends far more often.
    """
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in measured]
    processes = [
        spawn.Process(target=_over_and_over, args=(*each, told), daemon=True)
        for each, (_, told) in zip(measured, pipes, strict=True)
    ]
    costs: list[list[Cost]] = [[] for _ in measured]
    try:
        for process in processes:
            process.start()
            _signal(process, signal.SIGSTOP)
        while not all(costs):
            for process, (heard, _), known, (part, clusters) in zip(
                processes, pipes, costs, measured, strict=True
            ):
                _signal(process, signal.SIGCONT)
                time.sleep(SLICE_S if part == clusters else SLICE_S / 5)
                _signal(process, signal.SIGSTOP)
                while heard.poll():
                    known.append(heard.recv())
        return costs
    finally:
        for process in processes:
            process.kill()
            process.join()


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    if process.pid is not None:
        os.kill(process.pid, number)


def _turn_ms(costs: list[Cost]) -> float:
    return 1e3 * sum(cost.seconds for cost in costs) / sum(cost.turns for cost in costs)


def calls(part: int) -> float:
    """Calls of functions per turn, over two steps."""
    profile = cProfile.Profile()
    left = profile.runcall(simulate, cluster(part), rollart(ALPHA), steps=2)
    return sum(entry.callcount for entry in profile.getstats()) / left.turns


def run() -> list[Record]:
    """The whole cluster, a part of it alone, and all parts side by side."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        counts = [other.submit(calls, part) for part in (1, SMALLER)]
        wholes, parts, all_parts = in_turns((1, 1), (SMALLER, 1), (SMALLER, SMALLER))
        whole_calls, part_calls = (count.result() for count in counts)
    whole = wholes[0]
    assert whole.at_once == ENVIRONMENTS, f"{whole.at_once} environments ran at once"
    whole_ms, part_ms, all_parts_ms = map(_turn_ms, (wholes, parts, all_parts))
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
            "simulation: time of a turn, against twenty such clusters in one process",
            whole_ms / all_parts_ms,
            "x",
            at_most=GOAL_SIZE,
            peer=f"{whole_ms:.3f} ms; {all_parts_ms:.3f} ms",
        ),
        record(
            "simulation: time of a turn, against 1/20 of the cluster",
            whole_ms / part_ms,
            "x",
            at_most=GOAL_TIME,
            peer=f"{whole_ms:.3f} ms; {part_ms:.3f} ms with {parts[0].at_once:,} environments",
        ),
    ]

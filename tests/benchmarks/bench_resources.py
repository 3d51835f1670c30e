"""The overhead of calling workers through their `Cluster` instead of their actors."""

import statistics
import time
from collections.abc import Callable

import ray

from rollart_flow.resources import CPU, Cluster, Placement, Worker, hw_mapping, register
from rollart_flow.runner.executors.ray_cluster import ray_cluster
from tests.benchmarks.records import Record, record

WORKERS, CALLS, ROUNDS = 4, 200, 7
GOAL = 1.3


class Echo(Worker):
    """A worker that does nothing."""

    @register(mode="execute_all")
    def broadcast(self, value: int) -> int:
        """The value, from every worker."""
        return value

    @hw_mapping({"default": CPU})
    def routed(self, value: int, domain: str = "default") -> int:
        """The value, from one worker."""
        return value


def timed(call: Callable[[], object]) -> float:
    """Microseconds of a call."""
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return 1e6 * (time.perf_counter() - started) / CALLS


def ratio(ours: Callable[[], object], plain: Callable[[], object]) -> tuple[float, float, float]:
    """(median ratio, our microseconds, plain ones) of rounds that take turns."""
    rounds = [(timed(ours), timed(plain)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(values) for values in zip(*rounds, strict=True))
    return statistics.median(a / b for a, b in rounds), mine, theirs


def run() -> list[Record]:
    """A call of all workers, and one that is routed to one of them."""
    with ray_cluster():
        placements = [Placement(f"echo-{i}", "echo", CPU) for i in range(WORKERS)]
        cluster = Cluster(placements, Echo)
        cluster.wait_until_ready()
        actors = [worker.actor for worker in cluster.workers]
        every = ratio(
            lambda: cluster.broadcast(1), lambda: ray.get([a.broadcast.remote(1) for a in actors])
        )
        one = ratio(lambda: cluster.routed(1), lambda: ray.get(actors[0].routed.remote(1)))
        cluster.shutdown()
    return [
        record(
            f"resources: a call of {WORKERS} workers, against ray.get of their calls",
            every[0],
            "x",
            at_most=GOAL,
            peer=f"{every[1]:.0f} us; {every[2]:.0f} us",
        ),
        record(
            "resources: a call that is routed by domain, against ray.get of it",
            one[0],
            "x",
            at_most=GOAL,
            peer=f"{one[1]:.0f} us; {one[2]:.0f} us",
        ),
    ]

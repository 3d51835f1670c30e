"""Boxes of a pool: cost of a turn beyond its command, time to get a warm box, memory of idle ones.

A turn goes from the process that drives the environment to that of the environment, and from there
to the pool, which is in the driving process (inline) or in an actor of Ray: by the pool's socket,
or back through the driving process where the pool is on another node.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from rollart_flow.envs.adapter import open_environment
from rollart_flow.isolation.child import children_of
from rollart_flow.operators.sandbox_client import SandboxClient
from rollart_flow.operators.sandboxes import SandboxWorker
from rollart_flow.resources import Placement, Remote, TypedCluster, Worker
from rollart_flow.resources.local import LocalActor, LoopThread, wait
from rollart_flow.rows import from_ipc
from rollart_flow.sandbox.pool_demand import PoolSettings
from rollart_flow.sandbox.registry import SANDBOXES, create_sandbox
from rollart_flow.types import Assignment, AttemptLimits, Sampling, Split, Task
from tests.benchmarks.bench_sandbox import pss_kb
from tests.benchmarks.records import CannotRunError, Record, record
from tests.sandbox.probes import SMALL, Probe

TURNS, HAND_OUTS, IDLE = 300, 200, 1000
_LIMITS = AttemptLimits(max_turns=TURNS, context_tokens=1, trajectory_timeout_s=600.0)
_STEP = "box.exec(['/bin/true']).seconds"


class Rows:
    """The buffer's method for rows of boxes."""

    def __init__(self) -> None:
        self.ended = 0

    async def record_sandboxes(self, data: bytes) -> None:
        """Count the rows."""
        self.ended += from_ipc(data).num_rows


def run() -> Iterator[Record]:
    """Figures of an environment with boxes of a pool; takes about three minutes."""
    if problem := SANDBOXES.load("bubblewrap").problem():
        raise CannotRunError(problem)
    loop = LoopThread()
    try:
        yield from wait(loop.start(_inline(loop)), "inline")
    finally:
        loop.close()
    yield from _ray()


async def _inline(loop: LoopThread) -> list[Record]:
    await (await create_sandbox()).close()  # copies this Python at a machine's first box

    def spawn(kind: type[Worker], placement: Placement, given: Mapping[str, Any]) -> LocalActor:
        return LocalActor(loop, partial(kind, placement, **given))

    buffer: Remote[Any] = Remote(LocalActor(loop, partial(Rows)), "buffer")
    cluster = _cluster(buffer, spawn)
    client = _client(cluster)
    process = await _turns(client)
    thread = await _turns(client, isolated=False)
    waits = await _hand_outs(client)
    gigabytes = await _idle_gb(client)
    await client.close()
    await cluster.workers[0].call.drain.start()
    return [
        _turn("inline, environment in a process", *process),
        _turn("inline, environment in a thread", *thread),
        record("pool: a warm box, median", statistics.median(waits) * 1e3, "ms", at_most=10),
        record("pool: a warm box, p99", _late(waits) * 1e3, "ms", at_most=50),
        record(f"pool: {IDLE} warm boxes", gigabytes, "GiB", at_most=8),
    ]


def _ray() -> Iterator[Record]:
    from rollart_flow.resources import start_actor
    from rollart_flow.runner.executors.ray_cluster import ray_cluster

    with ray_cluster():
        buffer = cast(Remote[Any], start_actor(Rows, num_cpus=0)())
        cluster = _cluster(buffer, None)
        near, far, direct = asyncio.run(_over_ray(cluster))
        yield _turn("Ray, environment in a process", near, direct)
        yield record(
            "pool: turn beyond its command, Ray, pool on another node",
            statistics.median(far) * 1e3,
            "ms",
            peer=f"{statistics.median(far) / statistics.median(near):.1f} times that by the socket",
        )
        cluster.shutdown()


async def _over_ray(cluster: "TypedCluster[SandboxWorker]") -> list[list[float]]:
    """Seconds of turns to a pool of this node, of another node, and of a box itself."""
    near, far = _client(cluster), _client(cluster)
    far.node = "another"
    try:
        return await _turns(near, far)
    finally:
        await near.close()
        await far.close()


def _cluster(buffer: Remote[Any], spawn: Any) -> "TypedCluster[SandboxWorker]":
    return TypedCluster(
        [Placement("pool", SandboxWorker.role, "CPU")],
        SandboxWorker,
        arguments={"run": "bench", "settings": PoolSettings(), "buffer": buffer},
        max_concurrency=1000,
        spawn=spawn,
    )


def _client(cluster: "TypedCluster[SandboxWorker]") -> SandboxClient:
    return SandboxClient(cluster, "bench", {"probe": Probe()}, {"probe": _LIMITS})


def _attempt(number: int) -> Assignment:
    return Assignment(f"t{number}", "g", Task("t", "probe"), number, 0, Sampling(), Split.TRAIN)


async def _turns(*clients: SandboxClient, isolated: bool = True) -> list[list[float]]:
    """Seconds beyond the command, of turns by each client and of a box itself, taken in turns."""
    environments = [
        open_environment(Probe(), boxes=client.attempt(_attempt(-1)), isolated=isolated)
        for client in clients
    ]
    for environment in environments:
        await environment.reset(0, "{}")
    turns: list[list[float]] = [[] for _ in environments]
    direct: list[float] = []
    async with await create_sandbox(SMALL) as box:
        for _ in range(TURNS):
            for environment, taken in zip(environments, turns, strict=True):
                began = time.perf_counter()
                seconds, *_ = await environment.step(_STEP)
                taken.append(time.perf_counter() - began - float(cast(str, seconds)))
            began = time.perf_counter()
            done = await box.exec(["/bin/true"])
            direct.append(time.perf_counter() - began - done.seconds)
    for environment in environments:
        await environment.close()
    return [*turns, direct]


def _turn(name: str, turns: list[float], direct: list[float]) -> Record:
    least = f"least {min(turns) * 1e3:.2f} ms"
    peer = f"{least}; exec of a box itself {statistics.median(direct) * 1e3:.2f} ms"
    milliseconds = statistics.median(turns) * 1e3
    return record(
        f"pool: turn beyond its command, {name}", milliseconds, "ms", at_most=2, peer=peer
    )


async def _hand_outs(client: SandboxClient) -> list[float]:
    """Seconds from the request for a box that is warm to the box."""
    waits = []
    call = {"call": "open", "box": 1, "spec": _spec(), "snapshot": False}
    for number in range(HAND_OUTS):
        expected = client.expect(_attempt(number))
        assert expected is not None
        await asyncio.sleep(0.15)  # a box needs some 20 ms
        began = time.perf_counter()
        await expected(call, b"")
        waits.append(time.perf_counter() - began)
        expected.release()
    return waits


def _spec() -> dict[str, Any]:
    return asdict(SMALL)


def _late(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[-1]


async def _idle_gb(client: SandboxClient) -> float:
    """Proportional memory of warm boxes, over their processes and the growth of this one [GiB]."""
    own_before = pss_kb(os.getpid())
    expected = [client.expect(_attempt(number)) for number in range(IDLE)]
    while len(agents := _boxes()) < IDLE:  # noqa: ASYNC110  the pool tells nobody
        await asyncio.sleep(0.5)
    kilobytes = sum(map(pss_kb, agents)) + pss_kb(os.getpid()) - own_before
    for attempt in expected:
        assert attempt is not None
        attempt.release()
    return kilobytes / (1 << 20)


def _boxes() -> list[int]:
    """Agents of the boxes of this process."""
    found = children_of(os.getpid())
    for pid in found:
        found += children_of(pid)
    return [pid for pid in found if _is_agent(pid)]


def _is_agent(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().startswith(b"/run/rollart/loader")
    except OSError:
        return False

"""The cost of remote rewards: latency of a call, concurrent calls, calls that hang."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from rollart_flow.rewards.score import Scorer
from rollart_flow.serverless import CallPolicy, Endpoint, ServerlessReward, serve_app
from rollart_flow.serverless.contract import WARM, encode
from rollart_flow.types import Trajectory
from tests.benchmarks.records import Record, record
from tests.builders import TRAJECTORY, attempt
from tests.cli.shell import served_reward
from tests.serverless.servers import raw_server, response

CALLS = 300
"""Consecutive calls, for the cost of one."""
TOKENS = 2_000
"""Tokens of each trajectory of these calls; the other figures measure calls, not JSON."""
MANY, PLACES, REWARD_S = 2_000, 32, 0.01
"""Calls that a replica of Ray Serve works on at a time."""
ROUNDS = 5
"""Rounds, each beside the same rewards called directly with the same concurrency, where a reward
takes as long as the timers of this machine allow; medians count."""
ON_THEIR_WAY = 4 * PLACES
"""Calls in flight of a rollout, so that the next ones have arrived when a place is free."""
HEDGED, SLOW_S, HANGING = 1_600, 0.2, 20
"""Rewards of the comparison with calls that hang; every so manieth request does."""

LONG = replace(
    TRAJECTORY,
    token_ids=tuple(range(TOKENS)),
    action_mask=(True,) * TOKENS,
    logprobs=(-0.5,) * TOKENS,
    token_versions=(1,) * TOKENS,
    kept_token_ids=None,
)


async def nothing(trajectory: Trajectory) -> float:
    """A reward that takes no time."""
    return 1.0


def plain(trajectory: Trajectory) -> float:
    """The same reward as a plain function."""
    return 1.0


async def ten_ms(trajectory: Trajectory) -> float:
    """A reward that takes 10 ms, and no CPU."""
    await asyncio.sleep(REWARD_S)
    return 1.0


async def slow(trajectory: Trajectory) -> float:
    """A reward that takes as long as most rewards that call another service."""
    await asyncio.sleep(SLOW_S)
    return 1.0


async def median_ms(score: Callable[[Trajectory], Awaitable[object]]) -> float:
    """Milliseconds of a call, without the first ones."""
    taken = []
    for number in range(CALLS):
        before = time.perf_counter()
        await score(replace(LONG, trajectory_id=f"t{number}"))
        taken.append(time.perf_counter() - before)
    return 1e3 * statistics.median(taken[CALLS // 10 :])


async def over_http(function: str) -> float:
    """Milliseconds of a call through a served function."""
    with served_reward(f"{__name__}:{function}") as url:
        reward = ServerlessReward(url)
        try:
            return await median_ms(reward)
        finally:
            await reward.close()


async def in_a_process() -> float:
    """Milliseconds of a call of the plain function, without a network."""
    scorer = Scorer(plain)
    try:
        return await median_ms(lambda each: scorer.score(each, 60.0))
    finally:
        await scorer.close()


async def seconds_of(reward: ServerlessReward, rewards: int, first: int = 0) -> float:
    """Seconds of many concurrent rewards, as many as the policy allows."""
    trajectories = [attempt(first + number) for number in range(rewards)]
    before = time.perf_counter()
    await asyncio.gather(*map(reward, trajectories))
    return time.perf_counter() - before


@dataclass(frozen=True, slots=True)
class ServeSeconds:
    """Seconds of `MANY` calls through Ray Serve, on a replica that is up."""

    direct: float
    """Seconds of calls of 10 ms, direct in this process, as many at a time as there are places."""
    rewards: float
    """Seconds of calls of 10 ms, `ON_THEIR_WAY` at a time."""
    one_each: float
    """The same, as many in flight as there are places, so that each answer is awaited."""
    single: float
    """Seconds of calls without work by Ray Serve's own handle, each in its own message."""
    full: float
    """Seconds of such calls, in messages of as many calls as there are places."""


class CallingProcess:
    """A Ray process, like that of the reward operator."""

    async def through_serve(self) -> ServeSeconds:
        """Measure one after the other; the first round warms up."""
        firsts = range(0, (ROUNDS + 1) * MANY, MANY)
        rounds = [(await direct_seconds(), await rewards_seconds(ON_THEIR_WAY, n)) for n in firsts]
        direct, rewards = zip(*rounds[1:], strict=True)
        return ServeSeconds(
            statistics.median(direct),
            statistics.median(rewards),
            await rewards_seconds(PLACES, (ROUNDS + 1) * MANY),
            await bare_seconds(1),
            await bare_seconds(PLACES),
        )


async def direct_seconds() -> float:
    """Seconds of `MANY` rewards of 10 ms that are called directly."""
    places = asyncio.Semaphore(PLACES)

    async def call() -> None:
        async with places:
            await ten_ms(TRAJECTORY)

    before = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(MANY)))
    return time.perf_counter() - before


async def rewards_seconds(on_their_way: int, first: int) -> float:
    """Seconds of `MANY` rewards of 10 ms; numbers from `first` on, so that all are new."""
    policy = CallPolicy(max_concurrent=on_their_way, deadline_s=120.0, hedge_after_s=None)
    reward = ServerlessReward("serve://bench", policy)
    await reward(LONG)
    try:
        return await seconds_of(reward, MANY, first)
    finally:
        await reward.close()


async def bare_seconds(calls: int) -> float:
    """Seconds of `MANY` warming calls by Ray Serve's own handle, so many to a message."""
    from ray import serve

    handle: Any = serve.get_app_handle("bench").options(method_name="answers", stream=True)
    places = asyncio.Semaphore(max(2, PLACES // calls))
    message = [encode(WARM)] * calls

    async def call() -> None:
        async with places:
            async for _ in handle.remote(message):
                pass

    before = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(MANY // calls)))
    return time.perf_counter() - before


def serve_seconds() -> ServeSeconds:
    """`CallingProcess.through_serve` on a Ray of its own."""
    import ray
    from ray import serve

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(proxy_location="Disabled")
        app = serve_app(ten_ms, max_replicas=1, max_concurrent=PLACES, num_cpus=0.1)
        serve.run(app, name="bench", route_prefix=None)
        caller: Any = ray.remote(num_cpus=0)(CallingProcess).remote()
        found: ServeSeconds = ray.get(caller.through_serve.remote())
        return found
    finally:
        serve.shutdown()
        ray.shutdown()


async def with_hanging(*, hang: bool) -> float:
    """Rewards a second where requests hang, or none does."""
    endpoint, requests = Endpoint(slow), count(1)

    async def handle(body: bytes) -> bytes:
        if hang and next(requests) % HANGING == 0:
            await asyncio.Event().wait()
        return response("200 OK", await endpoint(body))

    policy = CallPolicy(max_concurrent=PLACES, hedge_after_s=1.2 * SLOW_S, attempt_timeout_s=1.0)
    async with raw_server(handle) as url:
        reward = ServerlessReward(url, policy)
        try:
            return HEDGED / await seconds_of(reward, HEDGED)
        finally:
            await reward.close()


def run() -> list[Record]:
    """The three figures, each with its comparison."""
    far, far_plain = asyncio.run(over_http("nothing")), asyncio.run(over_http("plain"))
    near_plain = asyncio.run(in_a_process())
    ideal_s = MANY * REWARD_S / PLACES
    through = serve_seconds()
    well = asyncio.run(with_hanging(hang=False))
    hanging = asyncio.run(with_hanging(hang=True))
    return [
        record(
            f"serverless: what loopback HTTP adds to a reward, {TOKENS:,} tokens",
            far,
            "ms",
            at_most=10,
            peer=f"plain function {far_plain:.1f} ms; without a network {near_plain:.1f} ms",
        ),
        record(
            f"serverless: {MANY:,} rewards of 10 ms, {PLACES} at a time through Ray Serve, / ideal",
            through.rewards / ideal_s,
            "x",
            at_most=1.3,
            peer=f"{through.rewards:.2f} s; ideal {ideal_s:.2f} s; with {PLACES} on their way "
            f"{through.one_each:.2f} s; no work, {PLACES} to a message {through.full:.2f} s, "
            f"one to a message {through.single:.2f} s",
        ),
        record(
            "serverless: the same, / the same rewards called directly, as many at a time",
            through.rewards / through.direct,
            "x",
            peer=f"{through.direct:.2f} s",
        ),
        record(
            "serverless: throughput with 1 request in 20 hanging, hedged, / without",
            hanging / well,
            "x",
            at_least=0.9,
            peer=f"{hanging:.0f}/s; {well:.0f}/s",
        ),
    ]

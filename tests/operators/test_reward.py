"""The reward operator with rewards that run elsewhere: warming, timing out, isolation."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from rollart_flow.operators.reward import Reward, RewardSettings
from rollart_flow.rewards.score import score
from rollart_flow.rows import trajectories_table, trajectory_from_row
from rollart_flow.serverless import CallPolicy, Endpoint, ServerlessReward
from rollart_flow.serverless.contract import WARM, decode
from rollart_flow.types import Outcome, Reason, Trajectory
from tests.rewards import functions
from tests.serverless.servers import raw_server, response, serving
from tests.serverless.trajectories import TRAJECTORY

POLICY = CallPolicy(deadline_s=30.0, hedge_after_s=None, backoff_s=0.01, max_concurrent=3)


def operator(function: Any, timeout_s: float = 30.0) -> Reward:
    return Reward(RewardSettings(function, timeout_s, max_concurrent=64))


async def scored(reward: Reward, trajectory: Trajectory) -> Trajectory:
    (row,) = (await reward(trajectories_table([trajectory]))).to_pylist()
    return trajectory_from_row(row)


def of_version(version: int, number: int) -> Trajectory:
    name = f"v{version}-{number}"
    return replace(TRAJECTORY, trajectory_id=name, attempt=number, policy_version_end=version)


def test_the_first_trajectory_of_a_version_warms_the_endpoint() -> None:
    """Three places: three warming requests for each of the two versions, beside the calls."""
    warmed = asyncio.Semaphore(0)
    kinds: list[str] = []
    good = Endpoint(functions.in_the_loop)

    async def handle(body: bytes) -> bytes:
        warms = decode(body) == WARM
        kinds.append("warm" if warms else "call")
        if warms:
            warmed.release()
        return response("200 OK", await good(body))

    async def test() -> None:
        async with raw_server(handle) as url:
            remote = ServerlessReward(url, POLICY)
            reward = operator(remote)
            for version in (4, 5):
                for number in range(3):
                    result = await scored(reward, of_version(version, number))
                    assert result.reward is not None
                for _ in range(3):
                    await warmed.acquire()
            await scored(reward, of_version(4, 9))  # an older one is no news
            await remote.close()

    asyncio.run(test())
    assert kinds.count("warm") == 6
    assert kinds.count("call") == 7


def test_warming_that_comes_to_nothing_hurts_nobody() -> None:
    good = Endpoint(functions.in_the_loop)

    async def handle(body: bytes) -> bytes:
        if decode(body) == WARM:
            return response("500 Internal Server Error")
        return response("200 OK", await good(body))

    async def test() -> None:
        async with raw_server(handle) as url:
            remote = ServerlessReward(url, POLICY)
            result = await scored(operator(remote), TRAJECTORY)
            await remote.close()
            assert result.reward is not None

    asyncio.run(test())


def test_a_reward_that_never_answers_is_timed_out_and_delays_no_other() -> None:
    async def some_hang(trajectory: Trajectory) -> float:
        if trajectory.attempt == 0:
            await asyncio.Event().wait()
        return float(trajectory.attempt)

    async def test() -> None:
        async with serving(some_hang) as url:
            remote = ServerlessReward(url, replace(POLICY, deadline_s=1.5))
            reward = operator(remote, timeout_s=1.5)
            hung = asyncio.ensure_future(scored(reward, of_version(5, 0)))
            others = await asyncio.gather(*(scored(reward, of_version(5, n)) for n in (1, 2, 3)))
            assert [t.reward for t in others] == [1.0, 2.0, 3.0]
            assert not hung.done()
            late = await hung
            assert (late.outcome, late.reason) == (Outcome.TIMED_OUT, Reason.REWARD_TIMEOUT)
            assert late.reward is None
            await remote.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("function", "reason"),
    [(functions.raises, Reason.REWARD_ERROR), (functions.nan, Reason.REWARD_NOT_FINITE)],
)
def test_a_remote_failure_has_the_reason_of_a_local_one(function: Any, reason: Reason) -> None:
    async def test() -> None:
        async with serving(function) as url:
            remote = ServerlessReward(url, POLICY)
            far = await scored(operator(remote), TRAJECTORY)
            near = await score(TRAJECTORY, function)
            await remote.close()
            assert (far.outcome, far.reason) == (near.outcome, near.reason)
            assert far.reason is reason

    asyncio.run(test())


def test_a_broken_endpoint_fails_nobody_who_can_wait() -> None:
    """It answers 503 until the breaker has opened, and is well when it is tried again."""
    good = Endpoint(functions.in_the_loop)
    requests = 0

    async def handle(body: bytes) -> bytes:
        nonlocal requests
        requests += 1
        if requests <= 3:
            return response("503 Service Unavailable")
        return response("200 OK", await good(body))

    async def test() -> None:
        async with raw_server(handle) as url:
            policy = replace(POLICY, breaker_failures=3, breaker_reset_s=0.2, max_concurrent=8)
            remote = ServerlessReward(url, policy)
            calls = (remote(of_version(5, n)) for n in range(8))
            rewards = await asyncio.gather(*calls)
            await remote.close()
            assert all(isinstance(reward, float) and math.isfinite(reward) for reward in rewards)

    asyncio.run(test())

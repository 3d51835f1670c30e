"""The reward operator with rewards that run elsewhere: warming, timing out, isolation."""

import asyncio
import math
import os
import select
import sys
from dataclasses import replace
from typing import Any

import pytest

from rollart_flow.operators.reward import RewardSettings, RewardStage
from rollart_flow.rewards import Part, compose, majority
from rollart_flow.rewards.score import Scorer, score
from rollart_flow.serverless import CallPolicy, Endpoint, ServerlessReward
from rollart_flow.serverless.contract import WARM, decode
from rollart_flow.types import Outcome, Reason, Trajectory
from tests.builders import TRAJECTORY
from tests.rewards import functions
from tests.serverless.servers import raw_server, response, serving
from tests.test_episodes import FIRST, SECOND

POLICY = CallPolicy(deadline_s=30.0, hedge_after_s=None, backoff_s=0.01, max_concurrent=3)


def operator(function: Any, timeout_s: float = 30.0) -> RewardStage:
    return RewardStage(RewardSettings(function, timeout_s, max_concurrent=64))


async def test_a_domain_has_its_own_time_limit() -> None:
    async def hangs(trajectory: Trajectory) -> float:
        await asyncio.Event().wait()
        return 0.0

    stage = RewardStage(RewardSettings(hangs, math.inf, 64, timeouts={"lake": 0.01}))
    (late,) = await stage((replace(TRAJECTORY, domain="lake"),))
    await stage.close()
    assert late.error == "reward function hangs: no reward within 0.01 s"


async def scored(reward: RewardStage, trajectory: Trajectory) -> Trajectory:
    (found,) = await reward((trajectory,))
    return found


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


def test_the_parts_of_a_composed_reward_are_warmed_too() -> None:
    """Each endpoint once, though one of them stands twice."""
    kinds: list[str] = []
    all_warmed = asyncio.Event()
    good = Endpoint(functions.in_the_loop)

    async def handle(body: bytes) -> bytes:
        kinds.append("warm" if decode(body) == WARM else "call")
        if kinds.count("warm") == 6:
            all_warmed.set()
        return response("200 OK", await good(body))

    async def test() -> None:
        async with raw_server(handle) as one, raw_server(handle) as other:
            first, second = ServerlessReward(one, POLICY), ServerlessReward(other, POLICY)
            composed = compose(first, Part("judged", majority(second)), Part("again", first))
            result = await scored(operator(composed), TRAJECTORY)
            assert result.reward is not None
            await all_warmed.wait()
            await Scorer(composed).close()

    asyncio.run(test())
    assert (kinds.count("warm"), kinds.count("call")) == (6, 4)


def test_closing_a_composed_reward_ends_the_processes_of_its_parts() -> None:
    async def test() -> None:
        pool = ServerlessReward("local://tests.rewards.functions:pid?processes=1", POLICY)
        scorer = Scorer(compose(functions.turns, Part("pool", majority(pool, 1), cap=1e-9)))
        pid = await pool(TRAJECTORY)
        assert isinstance(pid, float)
        assert (await scorer.score(TRAJECTORY, 30.0)).reward is not None
        await scorer.close()
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)

    asyncio.run(test())


def test_what_a_reward_holds_ends_with_its_process() -> None:
    """Killed by a signal: its pool of processes ends, and its connection is closed."""
    script = """if True:
        import asyncio, sys
        from rollart_flow.operators.reward import RewardStage, RewardSettings
        from rollart_flow.rewards import Part, compose
        from rollart_flow.serverless import ServerlessReward
        from tests.builders import TRAJECTORY

        async def main():
            pool = ServerlessReward("local://tests.rewards.functions:pid?processes=1")
            far = compose(pool, Part("far", ServerlessReward(sys.argv[1])))
            reward = RewardStage(RewardSettings(far, 30.0, 1))
            print(int(await pool(TRAJECTORY)), flush=True)
            await reward((TRAJECTORY,))

        asyncio.run(main())
    """

    async def test() -> None:
        asked, closed = asyncio.Event(), asyncio.Event()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                asked.set()
                await reader.read()
                closed.set()
            except asyncio.IncompleteReadError:
                pass  # a connection in stock, on which nothing was asked
            finally:
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        child = os.pidfd_open(int(await process.stdout.readline()))
        await asked.wait()
        process.kill()
        await process.wait()
        await closed.wait()
        assert await asyncio.to_thread(select.select, [child], [], [], 60.0) == ([child], [], [])
        os.close(child)
        server.close()

    asyncio.run(test())


def test_an_endpoint_that_cannot_be_opened_is_told_by_the_calls_alone() -> None:
    async def test() -> None:
        remote = ServerlessReward("local://tests.rewards.functions:missing", POLICY)
        await remote.warm(3)
        result = await scored(operator(remote), TRAJECTORY)
        assert result.error is not None
        assert "has no function 'missing'" in result.error

    asyncio.run(test())


def test_a_part_that_is_late_has_the_reason_of_a_late_reward() -> None:
    async def hang(body: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def test() -> None:
        async with raw_server(hang) as url:
            remote = ServerlessReward(url, replace(POLICY, deadline_s=0.2))
            composed = compose(functions.in_the_loop, Part("far", remote))
            late = await score(TRAJECTORY, composed)
            assert (late.outcome, late.reason) == (Outcome.TIMED_OUT, Reason.REWARD_TIMEOUT)
            assert "part 'far': no answer within 0.2 s" in (late.error or "")

    asyncio.run(test())


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


async def test_an_attempt_of_several_branches_is_scored_once() -> None:
    seen: list[Trajectory] = []

    async def turns(trajectory: Trajectory) -> float:
        seen.append(trajectory)
        return float(len(trajectory.turns))

    stage = operator(turns)
    branches = (FIRST, SECOND)
    rows = await stage(branches)
    await stage.close()
    assert [row.trajectory_id for row in rows] == [each.trajectory_id for each in branches]
    assert [row.reward for row in rows] == [2.0, 2.0]
    assert len(seen) == 1

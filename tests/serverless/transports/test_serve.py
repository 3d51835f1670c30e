"""`serve://`: a real Ray Serve application that starts from nothing and goes back to nothing."""

import asyncio
import os
import select
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from rollart_flow.errors import RewardFailedError, ServerlessError
from rollart_flow.rewards.base import Score
from rollart_flow.serverless import CallPolicy, ServerlessReward, serve_app
from rollart_flow.types import Trajectory
from tests.builders import TRAJECTORY, attempt
from tests.local_ray import own_ray

ENDS_WITHIN_MS = 60_000


PLACES = 4
"""Evaluations at a time in a replica."""
DIES, HANGS, FAILS = 11, 12, 13
"""Attempts that do not come to a score."""


def die_once(mark: Path) -> None:
    """End this process, unless another has done so."""
    if not mark.exists():
        mark.touch()
        os._exit(1)


async def pid(trajectory: Trajectory) -> float:
    if trajectory.attempt == FAILS:
        raise KeyError("gold answer")
    if trajectory.attempt == HANGS:
        await asyncio.Event().wait()
    if trajectory.attempt == DIES:
        die_once(Path(trajectory.task))
    await asyncio.sleep(0.05)
    return float(os.getpid())


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    """The name of a deployed application."""
    with own_ray():
        from ray import serve

        try:
            serve.start(proxy_location="Disabled")
            app = serve_app(pid, max_replicas=2, max_concurrent=PLACES, idle_s=2.0, num_cpus=0.1)
            serve.run(app, name="rewards", route_prefix=None)
            yield "rewards"
        finally:
            serve.shutdown()


def test_it_starts_when_it_is_called_and_ends_when_it_is_not(app: str) -> None:
    async def test() -> int:
        reward = ServerlessReward(f"serve://{app}", CallPolicy(deadline_s=60.0, hedge_after_s=None))
        await reward.warm(1)
        process = await reward(TRAJECTORY)
        scores = await asyncio.gather(*(reward(attempt(n)) for n in range(8)))
        assert set(scores) == {process}
        with pytest.raises(RewardFailedError, match="KeyError: 'gold answer'"):
            await reward(attempt(FAILS))
        await reward.close()
        assert isinstance(process, float)
        return os.pidfd_open(int(process))

    replica = asyncio.run(test())
    end = select.poll()
    end.register(replica, select.POLLIN)
    ended = end.poll(ENDS_WITHIN_MS)
    os.close(replica)
    assert ended


async def replicas_that_score(reward: ServerlessReward, rounds: int) -> set[Score]:
    """Who answers more calls at a time than one replica has places for."""
    calls = (reward(attempt(100 + 100 * rounds + n)) for n in range(4 * PLACES))
    return set(await asyncio.gather(*calls))


@pytest.mark.whole
def test_calls_bring_a_second_replica_and_outlive_the_first(app: str, tmp_path: Path) -> None:
    """Sixteen at a time are too many for one. Then one dies with calls that it has not answered."""

    async def test() -> None:
        policy = CallPolicy(
            deadline_s=60.0, backoff_s=0.01, hedge_after_s=None, breaker_failures=100
        )
        reward = ServerlessReward(f"serve://{app}", policy)
        rounds = count()
        while len(await replicas_that_score(reward, next(rounds))) < 2:
            pass
        dies = replace(attempt(DIES), task=str(tmp_path / "mark"))
        hung = asyncio.ensure_future(reward(attempt(HANGS)))
        scores = await asyncio.gather(reward(dies), *(reward(attempt(n)) for n in range(7)))
        assert all(isinstance(score, float) for score in scores)
        assert os.listdir(tmp_path) == ["mark"]
        assert not hung.done()
        hung.cancel()
        await asyncio.gather(hung, return_exceptions=True)
        await reward.close()

    asyncio.run(test())


def test_an_application_that_is_not_there_is_refused(app: str) -> None:
    policy = replace(CallPolicy(), deadline_s=60.0)
    refused = r"no application 'other'; deploy it with serve.run"
    with pytest.raises(ServerlessError, match=refused):
        asyncio.run(ServerlessReward("serve://other", policy)(TRAJECTORY))

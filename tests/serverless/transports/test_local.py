"""A pool of processes as an endpoint."""

import asyncio
import os
from dataclasses import replace

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.rewards.base import Score
from rollart_flow.serverless import CallPolicy, ServerlessReward
from tests.builders import TRAJECTORY, attempt

QUICK = CallPolicy(deadline_s=20.0, backoff_s=0.001, hedge_after_s=None)


def score(url: str, policy: CallPolicy = QUICK) -> Score:
    """One reward through a client of its own."""

    async def call() -> Score:
        reward = ServerlessReward(url, policy)
        try:
            return await reward(TRAJECTORY)
        finally:
            await reward.close()

    return asyncio.run(call())


def test_local_runs_in_a_pool_of_processes() -> None:
    async def test() -> None:
        reward = ServerlessReward("local://tests.rewards.functions:pid?processes=2", QUICK)
        await reward.warm(64)
        scores = await asyncio.gather(*(reward(attempt(n)) for n in range(6)))
        await reward.close()
        assert len(set(scores)) == 2
        assert float(os.getpid()) not in scores

    asyncio.run(test())


def test_after_its_close_another_loop_may_use_it() -> None:
    """With one place, so that calls wait for each other in both loops."""
    reward = ServerlessReward(
        "local://tests.rewards.functions:turns", replace(QUICK, max_concurrent=1)
    )

    async def test() -> list[Score]:
        scores = await asyncio.gather(*(reward(attempt(n)) for n in range(3)))
        await reward.close()
        return scores

    assert [asyncio.run(test()) for _ in range(2)] == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("tests.rewards.functions:pid?processes=0", "takes processes=N, N >= 1"),
        ("tests.rewards.functions:pid?threads=2", "takes processes=N, N >= 1"),
        ("tests.rewards.functions:missing", "has no function 'missing'"),
    ],
)
def test_what_local_needs_is_said(rest: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        score(f"local://{rest}")

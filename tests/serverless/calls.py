"""One call of a serverless reward, as tests of its platforms make it."""

import asyncio

from rollart_flow.rewards.base import Score
from rollart_flow.serverless import CallPolicy, ServerlessReward
from tests.builders import TRAJECTORY

QUICK = CallPolicy(deadline_s=20.0, backoff_s=0.001, hedge_after_s=None)
WITH_PARTS = (0.5, {"right": 1.0, "short": -0.5})
"""The score that the hosted functions give."""


def score(url: str, policy: CallPolicy = QUICK) -> Score:
    """One reward through a client of its own."""

    async def call() -> Score:
        reward = ServerlessReward(url, policy)
        try:
            return await reward(TRAJECTORY)
        finally:
            await reward.close()

    return asyncio.run(call())

"""Rewards that raise, hang and return infinity; a trajectory comes back scored or failed.

It does the work of `rewards.score` without processes.
"""

import asyncio
import math
from dataclasses import replace
from random import Random

from rollart_flow.types import TRAINABLE, Outcome, Reason, Trajectory
from tests.dst.environments import wall
from tests.dst.plans import Faults

_SCORE_S = 0.1


class FaultyReward:
    """Scores trajectories.

    Args:
        chance: source of all randomness.
        faults: probabilities of failures.
        timeout_s: limit of scoring one trajectory [s].
    """

    def __init__(self, chance: Random, faults: Faults, timeout_s: float) -> None:
        self._chance = chance
        self._faults = faults
        self._timeout_s = timeout_s

    async def score(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its reward, or failed or timed out without one."""
        if trajectory.outcome not in TRAINABLE:
            return trajectory
        try:
            async with asyncio.timeout(self._timeout_s):
                reward = await self._evaluate()
        except TimeoutError:
            return _unscored(trajectory, Outcome.TIMED_OUT, Reason.REWARD_TIMEOUT)
        except ValueError:
            return _unscored(trajectory, Outcome.FAILED, Reason.REWARD_ERROR)
        if not math.isfinite(reward):
            return _unscored(trajectory, Outcome.FAILED, Reason.REWARD_NOT_FINITE)
        scored_at = wall(asyncio.get_running_loop().time())
        return replace(trajectory, reward=reward, scored_at=scored_at)

    async def _evaluate(self) -> float:
        chance, faults = self._chance, self._faults
        await asyncio.sleep(chance.expovariate(1 / _SCORE_S))
        draw = chance.random()
        if draw < faults.reward_raises:
            raise ValueError("the reward broke")
        draw -= faults.reward_raises
        if draw < faults.reward_hangs:
            await asyncio.Event().wait()
        draw -= faults.reward_hangs
        return math.inf if draw < faults.reward_infinite else chance.random()


def _unscored(trajectory: Trajectory, outcome: Outcome, reason: Reason) -> Trajectory:
    return replace(trajectory, outcome=outcome, reason=reason, error=f"the reward: {reason}")

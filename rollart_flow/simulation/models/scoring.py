"""Models of scoring: rules, serverless instances, devices of a reward model, or a stored run.

The invariant: `score` returns after the time that this trajectory's reward takes there, and
`busy_s` counts the device time that it occupied.
"""

import asyncio
from collections import deque
from typing import Protocol

from rollart_flow.control.loop.waits import waiting
from rollart_flow.simulation.measured import Measured
from rollart_flow.simulation.models.engine import MakeEngine, SimulatedEngine
from rollart_flow.simulation.scenario import RULE_S, Dedicated, Scenario, Serverless
from rollart_flow.simulation.workloads import Script


class Scoring(Protocol):
    """A model of scoring."""

    @property
    def busy_s(self) -> float:
        """Device seconds in which the reward model worked."""

    @property
    def paid_s(self) -> float:
        """Device seconds that were paid for it until now."""

    async def score(self, trajectory_id: str, script: Script) -> None:
        """Wait for as long as the reward of a trajectory takes."""


class RuleScoring:
    """Scoring by rules and small programs, which occupies no device of a reward model."""

    busy_s = 0.0
    paid_s = 0.0

    def __init__(self, score_s: float = RULE_S) -> None:
        self._score_s = score_s

    async def score(self, trajectory_id: str, script: Script) -> None:
        await asyncio.sleep(self._score_s)


class ServerlessScoring(RuleScoring):
    """Scoring on instances that scale with the calls, and to zero between them."""

    def __init__(self, settings: Serverless, score_s: float = RULE_S) -> None:
        super().__init__(score_s)
        self._settings = settings
        self._idle: deque[float] = deque()

    async def score(self, trajectory_id: str, script: Script) -> None:
        """Call a warm instance if one is idle; start a new one if not."""
        if not script.judged:
            await super().score(trajectory_id, script)
            return
        settings, now = self._settings, asyncio.get_running_loop().time()
        while self._idle and self._idle[0] < now - settings.keep_alive_s:
            self._idle.popleft()
        work_s = self._judge_s(script) / settings.concurrency
        seconds = settings.call_s + self._judge_s(script)
        self.busy_s += work_s
        self.paid_s += work_s
        if self._idle:
            self._idle.pop()
        else:
            seconds += settings.cold_start_s
            self.paid_s += settings.cold_start_s / settings.concurrency
        await asyncio.sleep(seconds)
        self._idle.append(asyncio.get_running_loop().time())

    def _judge_s(self, script: Script) -> float:
        judge, batch = self._settings.judge, self._settings.concurrency
        token_s = judge.decode_s(batch, script.tokens * batch)
        prefill_s = judge.prefill_s(script.tokens, script.tokens / 2)
        return prefill_s + self._settings.verdict_tokens * token_s


class DedicatedScoring:
    """Scoring by a reward model on its own workers, each with continuous batching."""

    def __init__(
        self, settings: Dedicated, workers: list[SimulatedEngine], score_s: float = RULE_S
    ) -> None:
        self._score_s = score_s
        self._settings = settings
        self._workers = workers
        self._load = [0] * len(workers)

    @property
    def busy_s(self) -> float:
        """Sum over all workers [s]."""
        return sum(worker.batch.busy_s for worker in self._workers)

    @property
    def paid_s(self) -> float:
        """Time of all workers, whether they work or not [s]."""
        return len(self._workers) * asyncio.get_running_loop().time()

    async def score(self, trajectory_id: str, script: Script) -> None:
        if not script.judged:
            await asyncio.sleep(self._score_s)
            return
        index = min(range(len(self._load)), key=self._load.__getitem__)
        self._load[index] += 1
        try:
            with waiting(f"reward({trajectory_id})"):
                verdict = self._settings.verdict_tokens
                await self._workers[index].run(trajectory_id, script.tokens, verdict)
        finally:
            self._load[index] -= 1


class MeasuredScoring(RuleScoring):
    """Reward and commit together, for as long as they took in a stored run."""

    def __init__(self, measured: Measured, seed: int) -> None:
        super().__init__(measured.scored_s)
        self._commit_s = measured.commit_s.play(f"{seed}/commit")
        self._commit_ends: float | None = None

    async def score(self, trajectory_id: str, script: Script) -> None:
        await asyncio.sleep(self._score_s)
        now = asyncio.get_running_loop().time()
        if self._commit_ends is None or self._commit_ends <= now:
            self._commit_ends = now + next(self._commit_s)
        await asyncio.sleep(self._commit_ends - now)


def make_scoring(scenario: Scenario, seed: int, make: MakeEngine) -> Scoring:
    """The model of scoring that a scenario asks for."""
    if scenario.measured is not None:
        return MeasuredScoring(scenario.measured, seed)
    reward = scenario.reward
    if isinstance(reward, Serverless):
        return ServerlessScoring(reward, scenario.score_s)
    if isinstance(reward, Dedicated):
        workers = [make(f"reward-{i}", reward.judge, stored=False) for i in range(reward.workers)]
        return DedicatedScoring(reward, workers, scenario.score_s)
    return RuleScoring(scenario.score_s)

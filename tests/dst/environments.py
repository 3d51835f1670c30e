"""Environments that raise, hang, answer late and answer nonsense, and their codec."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from rollart_flow.types import Observation, Task
from rollart_flow.types.branching import StepObservation
from tests.dst.plans import STOP, Faults

DAWN = datetime(2026, 1, 1, tzinfo=UTC)
"""Wall-clock time at which every simulated run begins."""
Answer = tuple[StepObservation, float, bool, bool, Mapping[str, object]]
"""What a step returns."""
_LATEST_S = 4.0
_STEP_S = 0.2


def wall(seconds: float) -> datetime:
    """Convert virtual seconds to UTC."""
    return DAWN + timedelta(seconds=seconds)


def endless_tasks(cursor: int = 0) -> Iterator[tuple[Task, int]]:
    """An endless sequence of tasks of two domains in turn, each with its cursor."""
    while True:
        yield Task(f"task-{cursor}", "ab"[cursor % 2]), cursor
        cursor += 1


class LetterCodec:
    """A codec with one token per character."""

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        return tuple(ord(letter) for letter in text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token != STOP)


class FaultyEnvironment:
    """An environment that answers after a random time and ends after a few steps.

    Args:
        chance: source of all randomness.
        faults: probabilities of failures of a call.
        step_s: mean time to an answer [s].
    """

    ends = 0.4
    """Probability that a step ends the episode."""

    def __init__(self, chance: Random, faults: Faults, step_s: float = _STEP_S) -> None:
        self._chance = chance
        self._faults = faults
        self._step_s = step_s
        self._nonsense: list[Any] = [
            (17, "much", None, None, None),
            ("next", float("nan"), False, False, {}),
            ("next", 1.0),
            None,
        ]

    async def reset(self, seed: int, task: str) -> tuple[Observation, Mapping[str, object]]:
        await self._answer()
        return "go", {}

    async def step(self, action: Any) -> Answer:
        await self._answer()
        chance = self._chance
        if chance.random() < self._faults.environment_nonsense:
            answer: Answer = chance.choice(self._nonsense)
            return answer
        terminated = chance.random() < self.ends
        reward, truncated = chance.random(), chance.random() < 0.1
        return self._shown(action), reward, terminated, truncated, {"success": terminated}

    def _shown(self, action: Any) -> StepObservation:
        return "next"

    async def close(self) -> None:
        await self._fail(self._faults.environment_hangs, self._faults.environment_raises)

    async def _answer(self) -> None:
        seconds = self._chance.expovariate(1 / self._step_s)
        if self._chance.random() < self._faults.environment_late:
            seconds += self._chance.uniform(0.0, _LATEST_S)
        await asyncio.sleep(seconds)
        await self._fail(self._faults.environment_hangs, self._faults.environment_raises)

    async def _fail(self, hangs: float, raises: float) -> None:
        draw = self._chance.random()
        if draw < raises:
            raise ValueError("the environment broke")
        if draw < raises + hangs:
            await asyncio.Event().wait()

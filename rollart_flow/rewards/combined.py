"""Reward functions that are made of others, and how a reward function is called where it stands.

Invariant: a combined reward never calls its parts itself but through the `Call` that it is given,
so that each part runs where a function of its kind belongs: a plain one in a process that can be
killed, an async one in the event loop.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

from rollart_flow.rewards.base import RewardFunction, Score
from rollart_flow.rewards.checked import Checked, typed_score
from rollart_flow.types import Trajectory

Call = Callable[[RewardFunction, Trajectory], Awaitable[Checked]]
"""Calls a reward function on a trajectory; (reward, parts or None)."""


class Combined(ABC):
    """A reward function of other reward functions; itself async."""

    __slots__ = ()

    @abstractmethod
    async def combine(self, trajectory: Trajectory, call: Call) -> Score:
        """The reward of a trajectory; what it is made of is asked through `call`."""

    @abstractmethod
    def functions(self) -> tuple[RewardFunction, ...]:
        """What it is made of; combined ones stand for themselves."""

    async def __call__(self, trajectory: Trajectory) -> Score:
        """The same with every part in this process: a part that hangs cannot be abandoned."""
        return await self.combine(trajectory, call_here)


def single_functions(function: RewardFunction) -> Iterator[RewardFunction]:
    """What a reward function comes down to: itself, or what its parts come down to."""
    if isinstance(function, Combined):
        for part in function.functions():
            yield from single_functions(part)
    else:
        yield function


async def call_here(function: RewardFunction, trajectory: Trajectory) -> Checked:
    """Call a function in this process and event loop.

    Raises:
        TypeError: it returned no score.
    """
    score = function(trajectory)
    if inspect.isawaitable(score):
        return typed_score(await cast(Awaitable[object], score))
    return typed_score(score)


def is_async(function: RewardFunction) -> bool:
    """Whether a function, or an instance that is called like one, is an async one."""
    called = getattr(function, "__call__", None)  # noqa: B004  the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def name_of(function: RewardFunction) -> str:
    """What people call a function: its name, or the class of an instance."""
    return getattr(function, "__name__", type(function).__name__)

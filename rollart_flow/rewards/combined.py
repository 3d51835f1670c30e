"""Reward functions composed of other reward functions, and direct calls of a reward function.

Invariant: a combined reward calls its parts only through the given `Call`, so that each part runs
where a function of its kind belongs: a plain one in a process that can be killed, an async one in
the event loop.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

from rollart_flow.rewards.base import RewardFunction, Score
from rollart_flow.rewards.checked import Checked, typed_score
from rollart_flow.types import Trajectory

Call = Callable[[RewardFunction, Trajectory], Awaitable[Checked]]
"""A function that calls a reward function on a trajectory and returns (reward, parts or None)."""


class Combined(ABC):
    """An async reward function that combines other reward functions."""

    __slots__ = ()

    @abstractmethod
    async def combine(self, trajectory: Trajectory, call: Call) -> Score:
        """Return the reward of a trajectory; the parts are called through `call`."""

    @abstractmethod
    def functions(self) -> tuple[RewardFunction, ...]:
        """The direct parts of the reward; a combined part is listed as itself."""

    async def __call__(self, trajectory: Trajectory) -> Score:
        """Compute the reward with every part in this process, where a part that hangs cannot be
        killed.
        """
        return await self.combine(trajectory, call_here)


def single_functions(function: RewardFunction) -> Iterator[RewardFunction]:
    """Yield the reward functions at the leaves: the function itself, or the leaves of its parts."""
    if isinstance(function, Combined):
        for part in function.functions():
            yield from single_functions(part)
    else:
        yield function


async def call_here(function: RewardFunction, trajectory: Trajectory) -> Checked:
    """Call a function in this process and event loop.

    Raises:
        TypeError: the function returned no score.
    """
    score = function(trajectory)
    if inspect.isawaitable(score):
        return typed_score(await cast(Awaitable[object], score))
    return typed_score(score)


def is_async(function: RewardFunction) -> bool:
    """Return whether a function or a callable instance is async."""
    called = getattr(function, "__call__", None)  # noqa: B004  the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def name_of(function: RewardFunction) -> str:
    """Return the name of a function, or the class name of an instance."""
    return getattr(function, "__name__", type(function).__name__)

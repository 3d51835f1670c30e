"""What a reward function is. `reward(up, fn)` takes any; the default is the environment's own."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from rollart_flow.types import Trajectory

Score = float | tuple[float, Mapping[str, float]]
"""The final reward, or (reward, named parts)."""

RewardFunction = Callable[[Trajectory], Score | Awaitable[Score]]
"""Plain or async; it must be importable or picklable by Ray, and hold no state."""


def environment_reward(trajectory: Trajectory) -> Score:
    """The sum of what the environment gave at each turn."""
    return sum(turn.reward for turn in trajectory.turns)


@runtime_checkable
class RemoteReward(Protocol):
    """A reward function that runs elsewhere: it can be made ready, and holds connections."""

    async def warm(self, count: int) -> None:
        """Have it ready for `count` calls at a time."""

    async def close(self) -> None:
        """Give up the connections."""


def as_remote(function: object) -> RemoteReward | None:
    """The function if it is a remote one."""
    return function if isinstance(function, RemoteReward) else None

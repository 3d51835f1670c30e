"""Types of reward functions; the default of `reward(up, fn)` is the environment's reward."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from rollart_flow.types import Trajectory

Score = float | tuple[float, Mapping[str, float]]
"""The final reward, or (reward, named parts)."""

RewardFunction = Callable[[Trajectory], Score | Awaitable[Score]]
"""A plain or async function; it must be stateless, and importable or picklable by Ray."""


def environment_reward(trajectory: Trajectory) -> Score:
    """Return the sum of the rewards that the environment gave at each turn."""
    return sum(turn.reward for turn in trajectory.turns)


@runtime_checkable
class RemoteReward(Protocol):
    """A reward function that runs elsewhere; it can be warmed up, and holds connections."""

    async def warm(self, count: int) -> None:
        """Prepare for `count` concurrent calls."""

    async def close(self) -> None:
        """Close the connections."""


def as_remote(function: object) -> RemoteReward | None:
    """Return the function if it is a remote one, else None."""
    return function if isinstance(function, RemoteReward) else None

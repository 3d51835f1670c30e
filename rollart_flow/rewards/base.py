"""What a reward function is. `reward(up, fn)` takes any; the default is the environment's own."""

from collections.abc import Awaitable, Callable, Mapping

from rollart_flow.types import Trajectory

Score = float | tuple[float, Mapping[str, float]]
"""The final reward, or (reward, named parts)."""

RewardFunction = Callable[[Trajectory], Score | Awaitable[Score]]
"""Plain or async; it must be importable or picklable by Ray, and hold no state."""


def environment_reward(trajectory: Trajectory) -> Score:
    """The sum of what the environment gave at each turn."""
    return sum(turn.reward for turn in trajectory.turns)

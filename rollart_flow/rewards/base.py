"""Types of reward functions, and the check of what one returns.

Invariant: `typed_score` returns a `CheckedScore` in plain types and nothing else. Finiteness of the
reward and its parts is checked separately, since it has its own failure reason.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from rollart_flow.errors import RewardFailedError
from rollart_flow.text import one_line
from rollart_flow.types import Trajectory
from rollart_flow.types.verdict_checks import checked_verdicts
from rollart_flow.types.verdicts import Verdict

Score = (
    float
    | tuple[float, Mapping[str, float]]
    | tuple[float, Mapping[str, float] | None, Sequence[Verdict]]
)
"""The final reward, (reward, named parts), or (reward, parts or None, verdicts): outcomes of tests,
and of parts with a reason, which become rows of the table `verdicts`."""

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
    return function if isinstance(function, RemoteReward) else None


_EXPECTED = "a finite number or (finite number, mapping of names to finite numbers[, verdicts])"

_PARTS = 1000
"""Maximum number of parts of a reward."""
_PART_NAME = 200
"""Maximum length of a part's name, which is cut to it."""


class CheckedScore(NamedTuple):
    """A score in plain Python types."""

    reward: float
    parts: dict[str, float] | None = None
    verdicts: tuple[Verdict, ...] = ()

    @property
    def value(self) -> Score:
        """The score in its shortest form."""
        if self.verdicts:
            return self.reward, self.parts, self.verdicts
        return self.reward if self.parts is None else (self.reward, self.parts)


def typed_score(score: object) -> CheckedScore:
    """Convert a score to plain Python types; its numbers may still be NaN or infinite.

    Raises:
        TypeError: the value is not a score; the message names its type.
        ValueError: a number of a verdict is not finite, or there are too many verdicts.
    """
    values = score if isinstance(score, tuple | list) and len(score) in (2, 3) else (score, None)
    reward, parts = values[:2]
    verdicts = checked_verdicts(values[2], "verdicts") if len(values) > 2 else ()
    if parts is None:
        return CheckedScore(_number(reward, "reward"), None, verdicts)
    if not isinstance(parts, Mapping):
        raise TypeError(f"returned {_name(parts)} as parts; it must return {_EXPECTED}")
    if len(parts) > _PARTS:
        raise TypeError(f"returned {len(parts)} parts; at most {_PARTS} are stored")
    named = {}
    for given, value in parts.items():
        name = one_line(given, _PART_NAME)
        named[name] = _number(value, f"part {name!r}")
    return CheckedScore(_number(reward, "reward"), named, verdicts)


def infinite_number(score: CheckedScore) -> str | None:
    """Describe the first NaN or infinite number of a score; None if all are finite."""
    reward, parts, _ = score
    for name, value in {"reward": reward, **(parts or {})}.items():
        if not math.isfinite(value):
            return f"returned {value} as {name}; it must return {_EXPECTED}"
    return None


def finite(value: float, what: str) -> float:
    """Return a value for use in arithmetic, after a check that it is finite.

    Without the check a cap or a threshold would turn NaN into a number.

    Raises:
        RewardFailedError: the value is NaN or infinite; the message says which value it is.
    """
    if not math.isfinite(value):
        raise RewardFailedError(f"{what}: returned {value}; it must be a finite number")
    return value


def _number(value: object, what: str) -> float:
    item = getattr(value, "item", None)
    number = item() if callable(item) and getattr(value, "shape", None) == () else value
    if isinstance(number, int | float):
        return float(number)
    raise TypeError(f"returned {_name(value)} as {what}; it must return {_EXPECTED}")


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__

"""Rewards composed of others: an outcome and process parts, where the outcome dominates.

    reward  = outcome + process
    process = clip(sum over parts of clip(weight x value, cap), total_cap)

Invariants: of two trajectories whose outcomes differ by at least `gap`, the one with the better
outcome has the higher reward, whatever the process parts are: the process rewards of two
trajectories differ by at most 2 x total_cap, which is below the gap. A combined reward calls its
parts only through the given `Call`, so that each part runs where a function of its kind belongs: a
plain one in a process that can be killed, an async one in the event loop.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from rollart_flow.errors import (
    RewardFailedError,
    RewardNotFiniteError,
    RewardTimeoutError,
    SettingsError,
)
from rollart_flow.rewards.base import CheckedScore, RewardFunction, Score, finite, typed_score
from rollart_flow.types import Trajectory

Call = Callable[[RewardFunction, Trajectory], Awaitable[CheckedScore]]
"""A function that calls a reward function on a trajectory and returns its score."""


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
        """Compute every part in this process, where a part that hangs cannot be killed."""
        return await self.combine(trajectory, call_here)


def single_functions(function: RewardFunction) -> Iterator[RewardFunction]:
    """Yield the reward functions at the leaves: the function itself, or the leaves of its parts."""
    if isinstance(function, Combined):
        for part in function.functions():
            yield from single_functions(part)
    else:
        yield function


async def call_here(function: RewardFunction, trajectory: Trajectory) -> CheckedScore:
    """Call a function in this process and event loop.

    Raises:
        TypeError: the function returned no score.
    """
    score = function(trajectory)
    if inspect.isawaitable(score):
        return typed_score(await cast(Awaitable[object], score))
    return typed_score(score)


def is_async(function: RewardFunction) -> bool:
    called = getattr(function, "__call__", None)  # noqa: B004  the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def name_of(function: RewardFunction) -> str:
    """Return the name of a function, or the class name of an instance."""
    return getattr(function, "__name__", type(function).__name__)


@dataclass(frozen=True, slots=True)
class PerDomain(Combined):
    """A reward function of its own for some domains."""

    default: RewardFunction
    """The function of all other domains."""
    own: Mapping[str, RewardFunction]
    """Functions by domain."""

    def functions(self) -> tuple[RewardFunction, ...]:
        return self.default, *self.own.values()

    async def combine(self, trajectory: Trajectory, call: Call) -> Score:
        function = self.own.get(trajectory.domain, self.default)
        return (await call(function, trajectory)).value


OUTCOME, PROCESS = "outcome", "process"
"""Names in `reward_parts` of the outcome's reward and of the capped sum of all process parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process reward, which contributes weight x value, limited to `cap` in either direction.

    Raises:
        SettingsError: the name is empty, or the weight or cap is out of range.
    """

    name: str
    """Name of the contribution in `reward_parts`; nested parts are named `name.part`."""
    fn: RewardFunction
    weight: float = 1.0
    """Factor of the value; negative for a penalty."""
    cap: float = 0.1
    """Limit of the contribution in either direction; above 0."""

    def __post_init__(self) -> None:
        if not self.name:
            raise SettingsError("compose: a part has no name; its reward is stored under it")
        if not math.isfinite(self.weight) or self.weight == 0:
            raise SettingsError(
                f"compose: weight of {self.name!r} is {self.weight}; give a number that is not 0"
            )
        if not 0 < self.cap < math.inf:
            raise SettingsError(
                f"compose: cap of {self.name!r} is {self.cap}; give a number above 0"
            )


@dataclass(frozen=True, slots=True)
class Composition(Combined):
    """Settings of a composed reward; see `compose`."""

    outcome: RewardFunction
    process: tuple[Part, ...]
    total_cap: float
    gap: float

    def __post_init__(self) -> None:
        names = [OUTCOME, PROCESS, *(part.name for part in self.process)]
        for name in names:
            if names.count(name) > 1:
                taken = "is taken" if name in (OUTCOME, PROCESS) else "is there twice"
                raise SettingsError(f"compose: the name {name!r} {taken}; name the part otherwise")
        if not 0 < self.gap < math.inf:
            raise SettingsError(f"compose: gap is {self.gap}; give a number above 0")
        if not 0 <= self.total_cap < self.gap / 2:
            raise SettingsError(
                f"compose: total_cap is {self.total_cap}, so process rewards could outweigh "
                f"outcomes that are {self.gap} apart; give from 0 to less than {self.gap / 2}"
            )

    def functions(self) -> tuple[RewardFunction, ...]:
        return self.outcome, *(part.fn for part in self.process)

    async def combine(self, trajectory: Trajectory, call: Call) -> Score:
        value, inner, given = await call(self.outcome, trajectory)
        stored = {OUTCOME: finite(value, f"part {OUTCOME!r}"), **_prefixed(OUTCOME, inner)}
        verdicts = [replace(each, key=f"{OUTCOME}.{each.key}") for each in given]
        total = 0.0
        for part in self.process:
            value, inner, given = await _asked(part, trajectory, call)
            counted = _clip(part.weight * finite(value, f"part {part.name!r}"), part.cap)
            stored |= {part.name: counted, **_prefixed(part.name, inner)}
            verdicts += [replace(each, key=f"{part.name}.{each.key}") for each in given]
            total += counted
        stored[PROCESS] = _clip(total, self.total_cap)
        return CheckedScore(stored[OUTCOME] + stored[PROCESS], stored, tuple(verdicts)).value


def compose(
    outcome: RewardFunction, *process: Part, total_cap: float = 0.25, gap: float = 1.0
) -> Composition:
    """Compose an outcome's reward with process rewards that can never outweigh it.

    Parts may be plain, async or composed; each runs as it would alone, and all of them share the
    reward's timeout. `reward_parts` has "outcome", each part by name, and "process". If the
    environment does not report success, an evaluation counts rewards of 1 or more as solved;
    penalties can then make a right answer count as unsolved.

    Args:
        outcome: the main reward, such as `exact()`; it is not capped.
        process: additional rewards for the process.
        total_cap: limit of the sum of all parts in either direction.
        gap: smallest difference between two outcomes whose order must be kept, 1 if an outcome is 0
            or 1.

    Raises:
        SettingsError: a name is used twice, or 2 x total_cap is not below the gap.
    """
    return Composition(outcome, process, total_cap, gap)


async def _asked(part: Part, trajectory: Trajectory, call: Call) -> CheckedScore:
    try:
        return await call(part.fn, trajectory)
    except (RewardTimeoutError, RewardNotFiniteError) as error:
        raise type(error)(f"part {part.name!r}: {error}") from error
    except Exception as error:  # which part it was; the cause stays
        raise RewardFailedError(f"part {part.name!r}: {error}") from error


def _clip(value: float, cap: float) -> float:
    return max(-cap, min(cap, value))


def _prefixed(name: str, parts: Mapping[str, float] | None) -> dict[str, float]:
    return {f"{name}.{inner}": value for inner, value in (parts or {}).items()}

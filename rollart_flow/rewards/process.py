"""Rewards for the way of an attempt: how long it took, and each call of a captured agent.

Forge (MiniMax) adds such rewards to the outcome so that long attempts have a gradient,
and every one of them needs a cap: a term without one is what the policy learns instead of the task.
Invariant: both rewards are bounded by their settings, whatever an attempt did.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.rewards.base import Score, finite
from rollart_flow.text import one_line
from rollart_flow.types import Trajectory
from rollart_flow.types.exchanges import StoredExchange

CallReward = Callable[[StoredExchange], float]
"""Value of one call of a captured agent."""


@dataclass(frozen=True, slots=True)
class CompletionTime:
    """Reward from 1, for no time at all, down to 0 after `budget_s`: `completion_time(...)`.

    The time of a captured agent is that from its first call to the end of its last one, without the
    time in which calls waited for the engine to take them. The time of any other attempt is that
    from its start to its end.

    Raises:
        SettingsError: the budget is not above 0.
    """

    budget_s: float
    """Seconds after which there is no reward."""
    _: KW_ONLY
    solved_only: bool = True
    """Whether an attempt that the environment reports as not solved has reward 0, however fast it
    gave up."""

    def __post_init__(self) -> None:
        if not 0 < self.budget_s < math.inf:
            raise SettingsError(
                f"completion_time: budget_s is {self.budget_s}; give seconds above 0"
            )

    def __call__(self, trajectory: Trajectory) -> Score:
        seconds = attempt_s(trajectory)
        fast = max(0.0, 1.0 - seconds / self.budget_s)
        missed = self.solved_only and trajectory.solved is False
        return 0.0 if missed else fast, {"seconds": seconds}


@dataclass(frozen=True, slots=True)
class ProcessReward:
    """Sum of the values of an agent's calls, each and all of them capped; see `process_reward`."""

    fn: CallReward
    cap: float
    each: float

    def __post_init__(self) -> None:
        for name in ("cap", "each"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise SettingsError(f"process_reward: {name} is {value}; give a number above 0")

    def __call__(self, trajectory: Trajectory) -> Score:
        calls = trajectory.exchanges
        if calls is None:
            raise RewardFailedError(
                f"process_reward: trajectory {trajectory.trajectory_id} has no calls; it is for "
                "attempts of captured agents"
            )
        total = math.fsum(_clip(self._value(call), self.each) for call in calls)
        return _clip(total, self.cap), {"calls": float(len(calls)), "uncapped": total}

    def _value(self, call: StoredExchange) -> float:
        try:
            value = float(self.fn(call))
        except Exception as error:  # which call it was; the cause stays
            said = one_line(error) or type(error).__name__
            raise RewardFailedError(f"process_reward: call {call.number}: {said}") from error
        return finite(value, f"process_reward: call {call.number}")


completion_time = CompletionTime
"""The reward as pipelines name it."""


def process_reward(fn: CallReward, *, cap: float = 0.5, each: float = 0.1) -> ProcessReward:
    """Reward each call of a captured agent, within limits.

    The function gets each call in the order of their arrival, refused ones too. `reward_parts` has
    the number of `calls`, and the sum before the cap as `uncapped`. Use it as a `Part` of `compose`
    to add it to an outcome.

    Args:
        fn: value of a call; stateless, as reward functions are.
        cap: limit of the sum in either direction.
        each: limit of the value of one call in either direction.

    Raises:
        SettingsError: a limit is not above 0.
    """
    return ProcessReward(fn, cap, each)


def attempt_s(trajectory: Trajectory) -> float:
    """Return the seconds of an attempt, as `CompletionTime` counts them."""
    calls = trajectory.exchanges
    if not calls:
        return max(0.0, (trajectory.finished_at - trajectory.created_at).total_seconds())
    began, ended = min(c.arrived_at for c in calls), max(c.ended_at for c in calls)
    return max(0.0, (ended - began).total_seconds() - _waited_s(calls))


def _waited_s(calls: Sequence[StoredExchange]) -> float:
    """Return the seconds in which at least one call waited and none was generated."""
    waits = [(c.arrived_at, c.generating_at) for c in calls if c.generating_at is not None]
    works = [(c.generating_at, c.ended_at) for c in calls if c.generating_at is not None]
    return _union_s([*waits, *works]) - _union_s(works)


def _union_s(spans: Sequence[tuple[datetime, datetime]]) -> float:
    """Return the seconds that spans of time cover together."""
    total, reached = 0.0, None
    for start, end in sorted(spans):
        begin = start if reached is None else max(start, reached)
        if end > begin:
            total += (end - begin).total_seconds()
            reached = end
    return total


def _clip(value: float, cap: float) -> float:
    return max(-cap, min(cap, value))

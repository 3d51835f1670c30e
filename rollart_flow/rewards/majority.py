"""Majority vote over several runs of a flaky check.

Invariant: the reward equals that of all k runs, although runs that cannot change it are skipped.
"""

from dataclasses import dataclass, field

from rollart_flow.errors import SettingsError
from rollart_flow.rewards.base import RewardFunction, Score, finite
from rollart_flow.rewards.composition import Call, Combined
from rollart_flow.types import Trajectory


@dataclass(frozen=True, slots=True)
class Majority(Combined):
    """Reward 1 if most of k runs of a check pass, else 0; stop as soon as that is decided.

    `reward_parts` has the votes "passed" and "failed". A run that raises is not a vote: its error
    is the error of the reward. A judge returns the same score from its cache on every run, so a
    majority of judge calls has no effect.

    Raises:
        SettingsError: k is even or below 1.
    """

    fn: RewardFunction
    """Plain or async function; its runs are sequential."""
    k: int = 3
    """Number of runs, odd."""
    threshold: float = field(default=0.5, kw_only=True)
    """Smallest reward with which a run passes."""

    def __post_init__(self) -> None:
        if self.k < 1 or self.k % 2 == 0:
            raise SettingsError(
                f"majority: k is {self.k}; give an odd number, so that none is a tie"
            )

    def functions(self) -> tuple[RewardFunction, ...]:
        return (self.fn,)

    async def combine(self, trajectory: Trajectory, call: Call) -> Score:
        votes = {"passed": 0, "failed": 0}
        while max(votes.values()) <= self.k // 2:
            value, *_ = await call(self.fn, trajectory)
            votes["passed" if finite(value, "majority") >= self.threshold else "failed"] += 1
        return float(votes["passed"] > votes["failed"]), votes


majority = Majority

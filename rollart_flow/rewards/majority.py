"""What most of several runs of a flaky check say.

Invariant: the reward is that of all k runs, though runs that could change nothing are left out.
"""

from dataclasses import dataclass

from rollart_flow.errors import SettingsError
from rollart_flow.rewards.base import RewardFunction, Score
from rollart_flow.rewards.checked import finite
from rollart_flow.rewards.combined import Call, Combined
from rollart_flow.types import Trajectory


@dataclass(frozen=True, slots=True)
class Majority(Combined):
    """Settings of a majority; see `majority`."""

    fn: RewardFunction
    k: int
    threshold: float

    def __post_init__(self) -> None:
        if self.k < 1 or self.k % 2 == 0:
            raise SettingsError(
                f"majority: k is {self.k}; give an odd number, so that none is a tie"
            )

    def functions(self) -> tuple[RewardFunction, ...]:
        """The check."""
        return (self.fn,)

    async def combine(self, trajectory: Trajectory, call: Call) -> Score:
        """1 where more than half of the runs reach the threshold; the votes are the parts."""
        votes = {"passed": 0, "failed": 0}
        while max(votes.values()) <= self.k // 2:
            value, _ = await call(self.fn, trajectory)
            votes["passed" if finite(value, "majority") >= self.threshold else "failed"] += 1
        return float(votes["passed"] > votes["failed"]), votes


def majority(fn: RewardFunction, k: int = 3, *, threshold: float = 0.5) -> Majority:
    """1 where most of k runs of a check pass, else 0; stops as soon as that is decided.

    `reward_parts` has the votes: "passed" and "failed". A run that raises is no vote: its error is
    that of the reward. A judge answers the same again from its cache, so this is no use around one.

    Args:
        fn: plain or async; asked for one run after the other.
        k: runs, odd.
        threshold: a run passes from this reward on.

    Raises:
        SettingsError: k is even or below 1.
    """
    return Majority(fn, k, threshold)

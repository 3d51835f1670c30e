"""Circuit breaker: stops a run that can make no progress.

A run makes none if all attempts of a domain fail, or if filters refuse all trajectories.
"""

from dataclasses import dataclass, field

from rollart_flow.text import counted
from rollart_flow.types import Outcome, Reason, Sample

_BLAMELESS = frozenset({Outcome.STALE, Outcome.REDUNDANT, Outcome.CANCELLED})
"""Outcomes that were caused by the control plane and say nothing about the domain."""


@dataclass(slots=True)
class CircuitBreaker:
    """Counts consecutive failures by domain, and filtered trajectories between two batches."""

    limit: int
    """Number of consecutive failures of a domain that stops the run."""
    refusals_limit: int
    """Number of filtered trajectories without a batch in between that stops the run."""
    _failures: dict[str, int] = field(default_factory=dict)
    _refusals: int = 0

    def record(self, sample: Sample) -> str | None:
        """Count an ended attempt and return the error in one line if a limit is reached."""
        if sample.filtered:
            return self._refused(sample.trajectory_id)
        if sample.outcome in _BLAMELESS:
            return None
        if sample.trainable:
            self._failures.pop(sample.domain, None)
            return None
        count = self._failures[sample.domain] = self._failures.get(sample.domain, 0) + 1
        if count < self.limit:
            return None
        last = sample.error or f"outcome {sample.outcome} without an error message"
        failed = f"{counted(count, 'attempt')} in a row failed"
        return f"domain {sample.domain!r}: {failed}; the last one: {last}"

    def dropped(self, trajectory_id: str, reason: Reason) -> str | None:
        """Count a dropped trajectory and return the error if filters refused too many."""
        return self._refused(trajectory_id) if reason is Reason.FILTERED else None

    def evicted(self, group_id: str, reason: Reason, members: int) -> str | None:
        """Count the members of an evicted group and return the error, as `dropped` does."""
        return self._refused(group_id, members) if reason is Reason.GROUP_FILTERED else None

    def trained(self) -> None:
        """Reset the count of filtered trajectories, since a batch was formed."""
        self._refusals = 0

    def _refused(self, last: str, trajectories: int = 1) -> str | None:
        self._refusals += trajectories
        if self._refusals < self.refusals_limit:
            return None
        return (
            f"filter: {self._refusals} trajectories were refused and no batch came together; "
            f"the last one: {last}; let more pass"
        )

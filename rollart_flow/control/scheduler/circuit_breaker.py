"""A circuit breaker: what can come to nothing stops the run instead of burning it.

A domain whose attempts only fail, and a filter that lets nothing through.
"""

from dataclasses import dataclass, field

from rollart_flow.types import Outcome, Reason, Sample

_BLAMELESS = frozenset({Outcome.STALE, Outcome.REDUNDANT, Outcome.CANCELLED})
"""Outcomes that were caused by the control plane and say nothing about the domain."""


@dataclass(slots=True)
class CircuitBreaker:
    """Counts failures in a row by domain, and what filters refuse between two batches."""

    limit: int
    """Failures in a row, without a success between them, that are one too many."""
    refusals_limit: int
    """Trajectories that filters refuse, without a batch between them, that are one too many."""
    _failures: dict[str, int] = field(default_factory=dict)
    _refusals: int = 0

    def record(self, sample: Sample) -> str | None:
        """Count an ended attempt; the verdict in one line if its domain has failed too often."""
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
        return f"domain {sample.domain!r}: {count} attempts in a row failed; the last one: {last}"

    def dropped(self, trajectory_id: str, reason: Reason) -> str | None:
        """Count a trajectory that left the buffer alone; the verdict if filters took too many."""
        return self._refused(trajectory_id) if reason is Reason.FILTERED else None

    def evicted(self, group_id: str, reason: Reason, members: int) -> str | None:
        """Count the members of a group that left the buffer whole, as `dropped` counts one."""
        return self._refused(group_id, members) if reason is Reason.GROUP_FILTERED else None

    def trained(self) -> None:
        """A batch was formed: filters let enough through."""
        self._refusals = 0

    def _refused(self, last: str, trajectories: int = 1) -> str | None:
        self._refusals += trajectories
        if self._refusals < self.refusals_limit:
            return None
        return (
            f"filter: {self._refusals} trajectories were refused and no batch came together; "
            f"the last one: {last}; let more pass"
        )

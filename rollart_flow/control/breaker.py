"""A circuit breaker: a domain whose attempts only fail stops the run instead of burning it."""

from dataclasses import dataclass, field

from rollart_flow.types import Outcome, Sample

_BLAMELESS = frozenset({Outcome.STALE, Outcome.REDUNDANT, Outcome.CANCELLED})
"""Outcomes that were caused by the control plane and say nothing about the domain."""


@dataclass(slots=True)
class CircuitBreaker:
    """Counts failures in a row by domain."""

    limit: int
    """Failures in a row, without a success between them, that are one too many."""
    _failures: dict[str, int] = field(default_factory=dict)

    def record(self, sample: Sample) -> str | None:
        """Count an ended attempt; the verdict in one line if its domain has failed too often."""
        if sample.outcome in _BLAMELESS or sample.filtered:
            return None
        if sample.trainable:
            self._failures.pop(sample.domain, None)
            return None
        count = self._failures[sample.domain] = self._failures.get(sample.domain, 0) + 1
        if count < self.limit:
            return None
        last = sample.error or f"outcome {sample.outcome} without an error message"
        return f"domain {sample.domain!r}: {count} attempts in a row failed; the last one: {last}"

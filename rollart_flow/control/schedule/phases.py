"""Seconds of the phases of a training step, as the control plane measures them.

The invariant: an interrupted phase that is run again adds to its earlier seconds; only the newest
steps are kept.
"""

from dataclasses import dataclass, fields

from rollart_flow.control.schedule.declarations import Phase


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """Seconds of the phases of one step; names are columns of `steps`."""

    wait_s: float = 0.0
    """Seconds that training waited for the batch."""
    suspend_s: float = 0.0
    update_s: float = 0.0
    resume_s: float = 0.0
    pull_s: float = 0.0
    """Seconds of reading the new weights, summed over the workers."""
    exposed_pull_s: float = 0.0
    """Part of `update_s` that waited for the weights to be read."""
    push_s: float = 0.0
    """Seconds of publishing the version of the previous step."""

    @staticmethod
    def of_phase(phase: Phase, seconds: float) -> "PhaseSeconds":
        """Return the seconds of one phase; a phase of which no column is measured gives zeros."""
        match phase:
            case Phase.SUSPEND:
                return PhaseSeconds(suspend_s=seconds)
            case Phase.UPDATE:
                return PhaseSeconds(update_s=seconds)
            case Phase.RESUME:
                return PhaseSeconds(resume_s=seconds)
        return PhaseSeconds()

    def __add__(self, other: "PhaseSeconds") -> "PhaseSeconds":
        return PhaseSeconds(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


class StepSeconds:
    """Phase seconds by step."""

    def __init__(self) -> None:
        self._of: dict[int, PhaseSeconds] = {}

    def of(self, step: int) -> PhaseSeconds:
        """Return the phase seconds of a step so far."""
        return self._of.get(step, PhaseSeconds())

    def add(self, step: int, seconds: PhaseSeconds) -> None:
        """Add seconds to the phases of a step."""
        self._of[step] = self.of(step) + seconds

    def forget(self, step: int) -> None:
        """Discard the seconds of a step."""
        self._of.pop(step, None)

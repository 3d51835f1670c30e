"""Seconds of the phases of a training step, as the control plane measures them.

The invariant: an interrupted phase that is run again adds to what it took before; only the newest
steps are remembered.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """Seconds of the phases of one step; names are columns of `steps`."""

    wait_s: float = 0.0
    """Training waited for the batch."""
    suspend_s: float = 0.0
    update_s: float = 0.0
    resume_s: float = 0.0
    pull_s: float = 0.0
    """Reading the weights that the engines swapped to, accumulated over the workers."""
    exposed_pull_s: float = 0.0
    """Part of `update_s` that waited for that."""
    push_s: float = 0.0
    """Publishing the version of the step before."""


class StepSeconds:
    """The seconds of the steps that are not forgotten."""

    def __init__(self) -> None:
        self._of: dict[int, PhaseSeconds] = {}

    def of(self, step: int) -> PhaseSeconds:
        """Those of a step so far."""
        return self._of.get(step, PhaseSeconds())

    def add(self, step: int, name: str, seconds: float) -> None:
        """Add to one of a step's."""
        before = self.of(step)
        self._of[step] = replace(before, **{name: getattr(before, name) + seconds})

    def forget(self, step: int) -> None:
        """A step is long over."""
        self._of.pop(step, None)

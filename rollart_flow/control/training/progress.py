"""Progress of training: the seconds of each step's phases, and the published versions.

The invariants: an interrupted phase that is run again adds to its earlier seconds, and only the
newest steps are kept; versions become readable in order, and engines swap only to readable ones.
"""

from dataclasses import dataclass, fields

from rollart_flow.control.loop.waits import Signal, waiting
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


class Published:
    """The versions that can be read from the weight store, up to the newest one.

    A trained version may not be published yet, since publishing overlaps training (ROLLART section
    6.2).

    Args:
        version: newest version that can be read initially.
    """

    def __init__(self, version: int) -> None:
        self._newest = version
        self._grown = Signal()

    @property
    def newest(self) -> int:
        """The newest version that can be read."""
        return self._newest

    def add(self, version: int) -> bool:
        """Record that a version can be read; return False if this was known."""
        if version <= self._newest:
            return False
        self._newest = version
        self._grown.notify()
        return True

    async def wait(self, version: int) -> None:
        """Return once a version can be read."""
        while version > self._newest:
            with waiting(f"published({version})"):
                await self._grown.wait()

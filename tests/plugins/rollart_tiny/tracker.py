"""A tracker that writes the steps of its records to a file, or breaks as it is told to."""

from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink
from rollart_tiny import used

if TYPE_CHECKING:
    from rollart_flow.metrics.window import RunRecord


@dataclass(frozen=True)
class TinyTracker(Tracker):
    """Writes one line for each record."""

    file: str = ""
    """File of the lines; empty: there is none."""
    breaks: str = ""
    """What happens at the second record: "raise", "hang" or "exit"; empty: nothing."""

    name: ClassVar[str] = "tiny"

    def open(self, run: TrackedRun) -> TrackerSink:
        """Begin anew, or go on."""
        used("tracker")
        return TinySink(self)


class TinySink(TrackerSink):
    """The file of a tiny tracker."""

    def __init__(self, tracker: TinyTracker) -> None:
        self._tracker = tracker

    def write(self, record: "RunRecord") -> None:
        """Add a line, or break."""
        if record.number == 2 and self._tracker.breaks:
            self._break()
        if self._tracker.file:
            with Path(self._tracker.file).open("a") as lines:
                lines.write(f"{record.kind} {record.step}\n")

    def _break(self) -> None:
        import os

        match self._tracker.breaks:
            case "raise":
                raise ConnectionError(f"refused with key {os.environ['TINY_API_KEY']}")
            case "hang":
                Event().wait()
            case _:
                os._exit(3)

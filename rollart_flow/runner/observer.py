"""RunObserver: the alarms and the trackers of a run, beside the session that drives it.

What it finds becomes a row of `events` and one line for the display. Only the session's main thread
calls it, but for the thread that hears of trackers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from queue import Empty
from typing import Any

from rollart_flow.errors import RollartError
from rollart_flow.pipeline import Pipeline
from rollart_flow.rows import events_table
from rollart_flow.runner.alarm_watch import AlarmWatch, alarm_note
from rollart_flow.runner.messages import Messages
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.runner.tracking import RunTracking, tracker_event, tracker_note
from rollart_flow.store import Run, RunWriter, read_info
from rollart_flow.store.lease_file import Tenure
from rollart_flow.telemetry import OnProgress, Progress
from rollart_flow.trackers.following import Tracked
from rollart_flow.trackers.process import END_S
from rollart_flow.types import Event

LOOK = "look"
"""Stream of the message that a tracker has ended."""


class RunObserver:
    """Alarms and trackers of one session."""

    def __init__(self, pipeline: Pipeline, uri: str, on_progress: OnProgress) -> None:
        self._pipeline, self._uri, self._on_progress = pipeline, uri, on_progress
        self._ended: list[Tracked] = []
        """Trackers that ended early and have no event yet."""
        self._alarms: AlarmWatch | None = None
        self._tracking: RunTracking | None = None
        self._report: Callable[[Event], object] | None = None
        self._messages: Messages | None = None

    @contextmanager
    def tracking(self, tenure: Tenure) -> Iterator[None]:
        """Have the run tracked for the duration of the block; then give the trackers some time."""
        self._tracking = RunTracking(self._uri, self._pipeline.trackers, self._tracker_ended, END_S)
        try:
            yield
        finally:
            if self._pipeline.trackers:
                self._on_progress(Progress.phase("completing the trackers"))
            self._tracking.end()
            self._report = None
            if self._ended and read_info(self._uri).term == tenure.term:
                self._record_late(tenure)

    def drives(self, run: Run, processes: RunProcesses, messages: Messages) -> None:
        """Observe these processes of the run from now on, whose messages these are."""
        self._messages = messages
        report = processes.buffer.call.report
        self._report = lambda event: report.start([(datetime.now(UTC), event)])
        if self._alarms is None:
            boxes = processes.sandboxes is not None
            self._alarms = AlarmWatch(self._pipeline, run, boxes=boxes)

    def next_message(self) -> Any:
        """Return the next message; meanwhile raise the alarm of a run without progress."""
        assert self._messages is not None, "processes are driven"
        assert self._alarms is not None, "processes are driven"
        while True:
            try:
                return self._messages.get(timeout=self._alarms.wait_s)
            except Empty:
                self._raise_alarms(self._alarms.idle())

    def step(self, row: Mapping[str, Any]) -> None:
        """Take note of a training step, the row of which is committed."""
        assert self._alarms is not None, "processes are driven"
        assert self._tracking is not None, "the run is tracked"
        self._tracking.step()
        self._raise_alarms(self._alarms.step(row))

    def evaluation(self) -> None:
        """Take note of an evaluation, the rows of which are committed."""
        assert self._tracking is not None, "the run is tracked"
        self._tracking.step()

    def look(self) -> None:
        """Record the trackers that ended early."""
        while self._ended:
            tracked = self._ended.pop()
            self._record(tracker_event(tracked), tracker_note(tracked, read_info(self._uri).name))

    def _raise_alarms(self, events: Iterator[Event]) -> None:
        for event in events:
            self._record(event, alarm_note(event))

    def _record(self, event: Event, note: str) -> None:
        self._on_progress(Progress.note(note))
        if self._report is not None:
            self._report(event)

    def _tracker_ended(self, tracked: Tracked) -> None:
        self._ended.append(tracked)
        if self._messages is not None:
            self._messages.put((LOOK, None))

    def _record_late(self, tenure: Tenure) -> None:
        """Record trackers that ended early once the run's own writer is closed."""
        now, ended = datetime.now(UTC), tuple(self._ended)
        self.look()  # for the notes
        with suppress(RollartError):  # the run has ended as it has, whatever this writer meets
            writer = RunWriter.open(self._uri, tenure, ended=True)
            writer.commit("events", events_table((now, tracker_event(each)) for each in ended))
            writer.close(writer.info.status, writer.info.error, maintain=False)

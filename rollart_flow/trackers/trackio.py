"""trackio: the local SQLite store of its library, which its dashboard shows.

Each record has an id, with which trackio ignores it when it comes again. `trackio sync` publishes a
project to a Space.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.overview import overview_text
from rollart_flow.registry import Requirement
from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink

if TYPE_CHECKING:
    from rollart_flow.metrics.sampled import SampledAttempt
    from rollart_flow.metrics.window import RunRecord


@dataclass(frozen=True)
class TrackioTracker(Tracker):
    """trackio's local store, in TRACKIO_DIR."""

    project: str = "rollart"
    """Project of the run."""

    name: ClassVar[str] = "trackio"
    requirements: ClassVar = (Requirement("trackio", ("trackio",), "trackio"),)

    def open(self, run: TrackedRun) -> TrackerSink:
        """Open the store."""
        return TrackioSink(self, run)


class TrackioSink(TrackerSink):
    def __init__(self, tracker: TrackioTracker, run: TrackedRun) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self._tracker, self._run, self._store = tracker, run, SQLiteStorage
        self._config: dict[str, Any] | None = {**run.settings, "overview": overview_text()}

    def write(self, record: "RunRecord") -> None:
        """Write every figure and the samples in one transaction."""
        values: dict[str, Any] = dict(flat(record.figures))
        for place, sample in enumerate(self._tracker.samples_of(record)):
            values[f"samples/{record.kind}/{place}"] = self._trace(sample, record.step)
        self._store.bulk_log(
            self._tracker.project,
            self._run.name,
            [values],
            steps=[record.step],
            timestamps=[datetime.fromtimestamp(record.at_ms / 1000, UTC).isoformat()],
            config=self._config,
            log_ids=[f"{self._run.run_id}:{record.number}"],
            run_id=self._run.run_id,
        )
        self._config = None

    def _trace(self, sample: "SampledAttempt", step: int) -> dict[str, Any]:
        """Return a conversation in the form that trackio shows as a trace."""
        from trackio.trace import Trace

        trace = Trace(
            messages=[{"role": role, "content": said} for role, said in sample.messages],
            metadata={
                "trajectory": sample.trajectory_id,
                "domain": sample.domain,
                "outcome": sample.outcome,
                "reward": sample.reward,
            },
        )
        made: dict[str, Any] = trace._to_dict(self._tracker.project, self._run.name, step)
        return made

"""MLflow: one run at the tracking server or store that its library is set to.

Every value has the time of its record, so that the store knows one that comes again. Without
MLFLOW_TRACKING_URI the store is `mlflow.db` in the current folder, as is the library's custom.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.overview import overview_text
from rollart_flow.metrics.sampled import COLUMNS, sample_rows
from rollart_flow.registry import Requirement
from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink

if TYPE_CHECKING:
    from rollart_flow.metrics.window import RunRecord

_RUN_TAG = "rollart.run_id"
_RECORDS_TAG = "rollart.records"
_STORE = "sqlite:///mlflow.db"
_LONGEST_PARAM = 500
"""Characters of a setting that are kept."""
_AT_ONCE = 100
"""Params of one request, the most that a server takes."""
_METRICS_AT_ONCE = 1000
"""Values of one request, the most that a server takes."""


@dataclass(frozen=True)
class MlflowTracker(Tracker):
    """MLflow's tracking."""

    experiment: str = "rollart"
    """Experiment of the run."""

    name: ClassVar[str] = "mlflow"
    requirements: ClassVar = (Requirement("mlflow", ("mlflow-skinny", "mlflow"), "mlflow"),)

    def open(self, run: TrackedRun) -> TrackerSink:
        """Find the run by its tag, or create it."""
        return MlflowSink(self, run)


class MlflowSink(TrackerSink):
    def __init__(self, tracker: MlflowTracker, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._tracker, self._metric = tracker, Metric
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or _STORE)
        experiment = self._experiment()
        known = f"tags.`{_RUN_TAG}` = '{run.run_id}'"
        found = self._client.search_runs([experiment], known, max_results=1)
        tags = {_RUN_TAG: run.run_id, "mlflow.note.content": overview_text()}
        opened = (
            found[0] if found else self._client.create_run(experiment, run_name=run.name, tags=tags)
        )
        self._id = opened.info.run_id
        self.written = int(opened.data.tags.get(_RECORDS_TAG, 0))
        if not found:
            params = [Param(key, value) for key, value in _params("", run.settings).items()]
            for first in range(0, len(params), _AT_ONCE):
                self._client.log_batch(self._id, params=params[first : first + _AT_ONCE])

    def _experiment(self) -> str:
        known = self._client.get_experiment_by_name(self._tracker.experiment)
        if known is not None:
            return str(known.experiment_id)
        return str(self._client.create_experiment(self._tracker.experiment))

    def write(self, record: "RunRecord") -> None:
        """Write every figure with the record's own time, then its number."""
        values = flat(record.figures).items()
        metrics = [self._metric(name, value, record.at_ms, record.step) for name, value in values]
        for first in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=metrics[first : first + _METRICS_AT_ONCE])
        if samples := self._tracker.samples_of(record):
            table = json.dumps({"columns": COLUMNS, "data": sample_rows(samples)})
            place = f"samples/{record.kind}-{record.step:06}.json"
            self._client.log_text(self._id, table, place)
        self._client.set_tag(self._id, _RECORDS_TAG, record.number)

    def close(self) -> None:
        """Mark the run as finished; it goes on when it is opened again."""
        self._client.set_terminated(self._id)


def _params(prefix: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings as flat params, by their keys."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= _params(f"{prefix}{key}.", value)
        else:
            found[f"{prefix}{key}"[:250]] = str(value)[:_LONGEST_PARAM]
    return found

"""Weights & Biases: a run with the same id at every opening, in its library's own mode.

The step of W&B is the number of the record, which only grows: a record that the run has already is
not written again. Charts are over `step`, the training step. The key, the mode and the server are
the library's settings, in variables such as WANDB_API_KEY and WANDB_MODE; no key passes through
rollart_flow.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rollart_flow.metrics.figures import flat
from rollart_flow.metrics.overview import overview_text
from rollart_flow.metrics.sampled import COLUMNS, sample_rows
from rollart_flow.registry import Requirement
from rollart_flow.trackers.base import TrackedRun, Tracker, TrackerSink
from rollart_flow.trackers.wandb_files import offline_steps

if TYPE_CHECKING:
    from rollart_flow.metrics.window import RunRecord


@dataclass(frozen=True)
class WandbTracker(Tracker):
    """Weights & Biases."""

    project: str = "rollart"
    """Project of the run."""
    entity: str = ""
    """User or team; empty: that of the key."""
    group: str = ""
    """Group of runs; empty: none."""

    name: ClassVar[str] = "wandb"
    requirements: ClassVar = (Requirement("wandb", ("wandb",), "wandb"),)

    def open(self, run: TrackedRun) -> TrackerSink:
        """Open the run, or go on with it."""
        return WandbSink(self, run)


class WandbSink(TrackerSink):
    def __init__(self, tracker: WandbTracker, run: TrackedRun) -> None:
        import wandb

        self._tracker, self._table = tracker, wandb.Table
        folder = Path(os.environ.get("WANDB_DIR") or Path.cwd())
        offline = max(offline_steps(folder / "wandb", run.run_id), default=0)
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, save_code=False, x_disable_meta=True,
            x_disable_stats=True, x_save_requirements=False,
        )  # fmt: skip
        self._run = wandb.init(
            project=tracker.project, entity=tracker.entity or None, group=tracker.group or None,
            id=run.run_id, name=run.name, resume="allow", config=dict(run.settings),
            dir=folder, settings=settings, notes=overview_text(),
        )  # fmt: skip
        # The library writes beside this process: what was on its way when it died is lost. The
        # server's next step is one beyond its last record; offline the files say what they have.
        self.written = max(self._run.step - 1, offline, 0)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, record: "RunRecord") -> None:
        """Log every figure and the samples at the number of the record."""
        values: dict[str, Any] = {**flat(record.figures), "step": record.step}
        if samples := self._tracker.samples_of(record):
            rows = [list(row) for row in sample_rows(samples)]
            values[f"samples/{record.kind}"] = self._table(columns=list(COLUMNS), data=rows)
        self._run.log(values, step=record.number, commit=True)

    def close(self) -> None:
        """Upload what is pending, or close the file of an offline run."""
        self._run.finish()

"""AlarmWatch: the alarms of a run, from what the driver sees of it and from its tables.

The rules are in `metrics.alarms`. The watch looks at each step that is reported, and at the time
since the last one; it reads tables only where the run has boxes, which may leave something behind.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

import polars as pl

from rollart_flow.control.schedule.staleness import LagBound, StalenessPolicy
from rollart_flow.metrics.alarms import (
    RAISED,
    AlarmBook,
    Sign,
    disk_sign,
    leak_sign,
    progress_sign,
    step_signs,
)
from rollart_flow.pipeline import Pipeline
from rollart_flow.store import Run, files
from rollart_flow.types import Event, EventKind

_AGES: Mapping[type, str] = {StalenessPolicy: "staleness_mean", LagBound: "lag_mean"}
"""Column of `steps` with the age that a bound limits."""


class AlarmWatch:
    """The alarms of one session."""

    def __init__(self, pipeline: Pipeline, run: Run, *, boxes: bool) -> None:
        """Watch a run; alarms that an earlier session raised are still raised.

        Args:
            pipeline: the pipeline with its overrides.
            run: the run.
            boxes: whether the run has pools of boxes.
        """
        self._alarms = pipeline.alarms
        self._groups = pipeline.train.batch_size
        self._aged, self._bound = None, 0
        if (buffer := pipeline.train.buffer) is not None:
            self._groups = max(1, buffer.batch_size // pipeline.tasks.group_size)
            self._aged = _AGES.get(type(buffer.schedule.bound))
            if isinstance(buffer.schedule.bound, StalenessPolicy):
                self._bound = ceil(buffer.schedule.bound.alpha)
        self._run = run
        self._boxes, self._seq = boxes, 0
        self._book = AlarmBook()
        self._book.restore(tuple(open_alarms(self._run)))
        self._progressed_s = time.monotonic()

    @property
    def wait_s(self) -> float:
        """Longest time to wait for the next step before `idle` is asked [s]."""
        idle_s = time.monotonic() - self._progressed_s
        left_s = self._alarms.no_progress_s - idle_s
        return left_s if left_s > 0 else self._alarms.no_progress_s

    def idle(self) -> Iterator[Event]:
        """Give the alarm of a run that has had no step for too long, once."""
        yield from self._taken(progress_sign(self._alarms, time.monotonic() - self._progressed_s))

    def step(self, row: Mapping[str, Any]) -> Iterator[Event]:
        """Give the alarms that a step raises or ends."""
        self._progressed_s = time.monotonic()
        step = row["step"]
        yield from self._taken(progress_sign(self._alarms, 0.0), step)
        age = None if self._aged is None else row[self._aged]
        for sign in step_signs(self._alarms, row, groups=self._groups, age=age, bound=self._bound):
            yield from self._taken(sign, step)
        if not files.is_remote(self._run.uri):
            disk = shutil.disk_usage(self._run.uri)
            yield from self._taken(disk_sign(self._alarms, disk.free / disk.total), step)
        if self._boxes:
            yield from self._taken(leak_sign(self._alarms, self._leaked()), step)

    def _taken(self, sign: Sign, step: int | None = None) -> Iterator[Event]:
        event = self._book.take(sign, step)
        if event is not None:
            yield event

    def _leaked(self) -> int:
        """Count the processes that boxes left behind since the last count."""
        later = self._run.sandboxes.filter(pl.col("seq") > self._seq)
        found = later.select(pl.col("leaked").sum(), pl.col("seq").max()).collect()
        leaked, seq = found.row(0)
        self._seq = self._seq if seq is None else seq
        return int(leaked)


def open_alarms(run: Run) -> Iterator[str]:
    """Give the names of the alarms of a run that were raised and not ended."""
    rows = run.events.filter(pl.col("kind") == EventKind.ALARM).sort("seq").collect()
    last = dict(rows.select("subject", "detail").iter_rows())
    for name, detail in last.items():
        if json.loads(detail)["state"] == RAISED:
            yield name


def alarm_note(event: Event) -> str:
    """Return the line that is shown once when an alarm is raised or ends."""
    raised = event.detail["state"] == RAISED
    setting = str(event.detail["setting"]).removeprefix("pipeline.")
    said = f"alarm {event.subject}: {event.detail['said']}"
    return f"{said} ({setting})" if raised else f"alarm {event.subject} is over"

"""Spans of attempts: turns follow the reset, or the admission of a group that was reset ahead."""

from datetime import timedelta
from pathlib import Path

import pytest

from rollart_flow.metrics.reading import Cursor, RecordReader
from rollart_flow.metrics.spans import run_spans
from rollart_flow.rows import events_table, trajectories_table
from rollart_flow.store import Run, open_run
from rollart_flow.types import Event, EventKind
from rollart_flow.views.spans import spans_of_trajectory
from tests.builders import MOMENT, step_row, trajectory
from tests.runs import new_writer

RESET_S, GENERATE_S, STEP_S = 1.0, 0.1, 0.2
"""Times of the attempt, the last two of its turn."""


def a_run(folder: Path, admitted_s: float) -> Run:
    """A run with an attempt of ten seconds, whose group is admitted so long after its creation."""
    at = MOMENT + timedelta(seconds=admitted_s)
    row = trajectory(reset_s=RESET_S, finished_at=MOMENT + timedelta(seconds=10))
    again = Event(EventKind.ADMIT, "g", detail={"cursor": 0})
    with new_writer(folder) as writer:
        writer.commit("events", events_table([(at, again), (at + timedelta(seconds=5), again)]))
        writer.commit("trajectories", trajectories_table([row]))
        writer.commit("steps", step_row(1))
    return open_run(folder / "a")


@pytest.mark.parametrize(("admitted_s", "begins_s"), [(0.0, 1.0), (0.5, 1.0), (4.0, 4.0)])
def test_turns_begin_after_the_reset_and_the_admission(
    admitted_s: float, begins_s: float, tmp_path: Path
) -> None:
    run = a_run(tmp_path, admitted_s)
    (record,) = RecordReader(run).after(Cursor())
    (laid,) = (span for span in run_spans(record) if span.name == "turn")
    assert laid.start == MOMENT + timedelta(seconds=begins_s)

    rows = spans_of_trajectory(run.snapshot(), "g-00").collect().to_dicts()
    found = {row["span"]: (row["start_s"], round(row["end_s"], 6)) for row in rows}
    waited = {"wait for admission": (RESET_S, admitted_s)} if admitted_s > RESET_S else {}
    assert found == {
        "reset": (0.0, RESET_S),
        **waited,
        "generate": (begins_s, begins_s + GENERATE_S),
        "step": (begins_s + GENERATE_S, round(begins_s + GENERATE_S + STEP_S, 6)),
        "wait in rollout": (pytest.approx(begins_s + GENERATE_S + STEP_S), 10.0),
    }


def test_an_attempt_that_ends_before_its_admission_waits_until_its_end(tmp_path: Path) -> None:
    run = a_run(tmp_path, admitted_s=20.0)
    rows = spans_of_trajectory(run.snapshot(), "g-00").collect().to_dicts()
    (waited,) = (row for row in rows if row["span"] == "wait for admission")
    assert (waited["start_s"], waited["end_s"]) == (RESET_S, 10.0)

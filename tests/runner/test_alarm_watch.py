"""What a run's tables, rows and disk show raises its alarms: each of those between two steps."""

from pathlib import Path

import pytest

from rollart_flow.pipeline import Pipeline
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.alarm_watch import AlarmWatch
from rollart_flow.schema import to_table
from rollart_flow.store import Run
from rollart_flow.types import Event
from tests.cli.test_environments import box
from tests.conftest import SMALL_PIPELINE
from tests.runs import new_writer


def pipeline(folder: Path, **changes: str) -> Pipeline:
    """A small pipeline whose staleness may be 2, with a patience of one step."""
    given = {"alpha": "2", "alarms.patience": "1", **changes}
    return load_source(SMALL_PIPELINE, folder / "small.py", given).pipeline


FINE = {
    "step": 1,
    "zero_variance_groups": 0,
    "staleness_mean": 0.0,
    "mismatch_kl": None,
    "lags": None,
}
"""Columns of a step without any sign of trouble."""


def states(events: list[Event]) -> dict[str, object]:
    """What became of each alarm, by its name."""
    return {event.subject: event.detail["state"] for event in events}


@pytest.mark.parametrize(
    ("alarm", "trouble"),
    [
        ("zero_variance", {"zero_variance_groups": 1000}),
        ("staleness", {"staleness_mean": 2.0}),
        ("mismatch_kl", {"mismatch_kl": 0.2, "lags": [{"lag": 0}]}),
    ],
)
def test_a_step_with_a_sign_raises_the_alarm_and_one_without_ends_it(
    tmp_path: Path, alarm: str, trouble: dict[str, object]
) -> None:
    with new_writer(tmp_path) as writer:
        watch = AlarmWatch(pipeline(tmp_path), Run(writer.uri), boxes=False)
        assert states([*watch.step(FINE)]) == {}
        assert states([*watch.step(FINE | trouble)]) == {alarm: "raised"}
        assert states([*watch.step(FINE | trouble)]) == {}
        assert states([*watch.step(FINE)]).get(alarm, "ended") == "ended"


def test_boxes_that_leave_processes_behind_raise_an_alarm(tmp_path: Path) -> None:
    with new_writer(tmp_path) as writer:
        watch = AlarmWatch(pipeline(tmp_path), Run(writer.uri), boxes=True)
        writer.commit("sandboxes", to_table("sandboxes", [box(0)]))
        assert states([*watch.step(FINE)]) == {}
        writer.commit("sandboxes", to_table("sandboxes", [box(1, leaked=2)]))
        assert states([*watch.step(FINE)]) == {"leaked": "raised"}
        assert states([*watch.step(FINE)]) == {"leaked": "ended"}


def test_a_disk_that_is_nearly_full_raises_an_alarm(tmp_path: Path) -> None:
    """No disk is free as a whole, so that a threshold of 1 makes any disk nearly full."""
    with new_writer(tmp_path) as writer:
        full = pipeline(tmp_path, **{"alarms.disk_free": "1"})
        watch = AlarmWatch(full, Run(writer.uri), boxes=False)
        assert states([*watch.step(FINE)]) == {"disk_free": "raised"}

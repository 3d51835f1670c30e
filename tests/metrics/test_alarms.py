"""An alarm is raised once for an episode of trouble, and ends with a row."""

from typing import Any

import pytest

from rollart_flow import runner
from rollart_flow.cli.summary import summarize
from rollart_flow.errors import SettingsError
from rollart_flow.metrics.alarms import (
    AlarmBook,
    Alarms,
    disk_sign,
    leak_sign,
    progress_sign,
    step_signs,
)
from rollart_flow.pipeline.loading import load_source
from rollart_flow.runner.alarm_watch import open_alarms
from rollart_flow.store import open_run
from rollart_flow.types import EventKind
from tests.conftest import SMALL_PIPELINE

ROW: dict[str, Any] = {"zero_variance_groups": 0, "mismatch_kl": None, "lags": None}


def told(book: AlarmBook, alarms: Alarms, **row: Any) -> list[tuple[str, object]]:
    """Alarms that a step of four groups raises or ends, with a bound of 2."""
    age = row.pop("age", None)
    signs = step_signs(alarms, {**ROW, **row}, groups=4, age=age, bound=2)
    events = [book.take(sign, 1) for sign in signs]
    return [(event.subject, event.detail["state"]) for event in events if event is not None]


def test_an_episode_is_raised_once_it_has_lasted_and_ends_once() -> None:
    book, alarms = AlarmBook(), Alarms(patience=2)
    groups = [4, 0, 4, 4, 4, 4, 1, 0]
    found = [told(book, alarms, zero_variance_groups=count) for count in groups]
    assert found == [
        [], [], [], [("zero_variance", "raised")], [], [], [("zero_variance", "ended")], [],
    ]  # fmt: skip


def test_each_sign_has_its_threshold() -> None:
    alarms = Alarms(patience=1)
    lag_0, lag_1 = [{"lag": 0}], [{"lag": 1}]
    assert told(AlarmBook(), alarms, age=2.0) == [("staleness", "raised")]
    assert told(AlarmBook(), alarms, age=1.9) == []
    assert told(AlarmBook(), alarms, mismatch_kl=0.2, lags=lag_0) == [("mismatch_kl", "raised")]
    assert told(AlarmBook(), alarms, mismatch_kl=0.2, lags=lag_1) == []
    assert progress_sign(Alarms(no_progress_s=5), 5.0).troubled
    assert not progress_sign(Alarms(no_progress_s=5), 4.9).troubled
    assert leak_sign(alarms, 1).troubled
    assert disk_sign(alarms, 0.02).troubled
    with pytest.raises(SettingsError, match="zero_variance should be less than or equal to 1"):
        Alarms(zero_variance=2.0)


def test_an_alarm_of_an_earlier_session_is_not_raised_again() -> None:
    book = AlarmBook()
    book.restore(("disk_free",))
    assert book.take(disk_sign(Alarms(), 0.01), 3) is None
    ended = book.take(disk_sign(Alarms(), 0.5), 4)
    assert ended is not None
    assert ended.detail["state"] == "ended"


def test_a_run_records_its_alarms_and_show_tells_them(tmp_path: Any) -> None:
    notes: list[str] = []
    changes = {"alarms.zero_variance": "0", "patience": "2", "steps": "3", "every": "3"}
    loaded = load_source(SMALL_PIPELINE, tmp_path / "small.py", changes)
    result = runner.run(
        loaded,
        store=str(tmp_path),
        executor="inline",
        on_progress=lambda progress: notes.append(progress.text),
    )
    run = open_run(result.uri)
    events = run.events.collect()
    raised = events.filter(events["kind"] == EventKind.ALARM, events["subject"] == "zero_variance")
    assert raised["step"].to_list() == [2]
    assert '"setting": "pipeline.alarms.zero_variance"' in raised["detail"].item()
    assert [n for n in notes if n.startswith("alarm zero_variance")] == [
        next(n for n in notes if n.endswith("teach nothing (alarms.zero_variance)"))
    ]
    assert "zero_variance" in list(open_alarms(run))
    (shown,) = [said for said in summarize(run).warnings if "zero_variance" in said]
    assert shown.startswith("alarm zero_variance at step 2: ")


def test_a_run_without_progress_raises_an_alarm(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold is below the time of the first step, so that the alarm comes, and then ends."""
    changes = {"alarms.no_progress_s": "0.01", "steps": "1", "every": "1"}
    loaded = load_source(SMALL_PIPELINE, tmp_path / "small.py", changes)
    run = open_run(runner.run(loaded, store=str(tmp_path), executor="inline").uri)
    events = run.events.collect()
    rows = events.filter(events["kind"] == EventKind.ALARM, events["subject"] == "no_progress_s")
    assert ['"state": "ended"' in detail for detail in rows["detail"][:2]] == [False, True]

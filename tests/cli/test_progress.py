"""Progress: what a view makes of messages, and lines where there is no terminal."""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.spinner import Spinner

from rollart_flow.cli import progress
from rollart_flow.cli.progress import PHASES, ProgressView, render_view, showing_progress
from rollart_flow.telemetry import Progress


def step(number: int, **changes: float) -> Progress:
    row = {"step": number, "reward_mean": number / 10, "step_s": 2.0, "trajectories": 16}
    row |= {"staleness_max": 1, "lag_max": 2}
    row |= dict.fromkeys(PHASES, 0.25) | changes
    return Progress.step(
        row, total_steps=20, rewards={"arithmetic": number / 20}, committed=64 * number
    )


def evaluation(version: int, value: float) -> Progress:
    return Progress.evaluation(
        [
            {"policy_version": version, "domain": "arithmetic", "metric": metric, "value": value}
            for metric in ("success", "success_sampled", "turns_mean")
        ]
    )


def a_run() -> Iterator[Progress]:
    yield Progress.phase("starting the engines", total_steps=20)
    yield Progress.note("no H800 here: frozenlake runs on CPU")
    yield evaluation(0, 0.125)
    for number in range(1, 21):
        yield step(number)
    yield evaluation(20, 0.9375)


def view_of(messages: Iterator[Progress]) -> ProgressView:
    """A view after messages that come two seconds apart."""
    view = ProgressView("demo")
    for index, message in enumerate(messages):
        view.take(message, 2.0 * index)
    return view


def test_a_view_estimates_what_is_left_from_recent_steps() -> None:
    view = ProgressView("demo")
    assert view.left_s is None
    view.take(step(1, step_s=30.0), 0.0)
    for number in range(2, 6):
        view.take(step(number), 2.0 * number)
    assert view.left_s == 2.0 * 15


def test_a_view_keeps_curves_throughput_and_where_time_went() -> None:
    view = view_of(a_run())
    assert view.success == {"arithmetic": [0.125, 0.9375]}
    assert view.per_second == pytest.approx(32.0)
    assert view.phase_seconds == dict.fromkeys(PHASES, 5.0)
    assert (view.step, view.total_steps, view.staleness) == (20, 20, 1)


def test_throughput_is_that_of_training_where_nothing_else_is_known() -> None:
    messages = (replace(step(number), committed=0) for number in range(1, 6))
    assert view_of(messages).per_second == pytest.approx(8.0)


def test_a_view_is_bounded_however_long_the_run() -> None:
    view = view_of(step(number) for number in range(1, 2000))
    assert len(view.step_seconds) <= 10
    assert len(view.committed) <= 10


def test_the_display_shows_it_all() -> None:
    terminal = Console(width=160, force_terminal=True)
    with terminal.capture() as captured:
        terminal.print(render_view(view_of(a_run()), Spinner("dots"), 42.0))
    shown = captured.get()
    for expected in (
        "step 20/20",
        "success 0.94",
        "▂█",
        "staleness up to 1",
        "32.0 trajectories/s",
    ):
        assert expected in shown


def test_in_a_terminal_notes_stay_and_the_rest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(width=120, force_terminal=True, file=StringIO())
    monkeypatch.setattr(progress, "console", lambda: terminal)
    with showing_progress("demo") as on_progress:
        for message in a_run():
            on_progress(message)
    shown = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert "no H800 here: frozenlake runs on CPU" in shown
    assert "step 20/20" in shown
    assert shown.endswith("\x1b[2K")  # the display was wiped


def test_in_a_pipe_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_progress("demo") as on_progress:
        for message in a_run():
            on_progress(message)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "demo: starting the engines"
    assert lines[1] == "demo: no H800 here: frozenlake runs on CPU"
    assert lines[2] == "demo: version 0: arithmetic success_sampled 0.12"
    steps = [line for line in lines if ": step " in line]
    assert len(steps) == 11
    assert steps[-1].startswith("demo: step 20/20, reward 2.00, staleness up to 1")


def test_for_programs_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_progress("demo", quiet=True) as on_progress:
        for message in a_run():
            on_progress(message)
    assert capsys.readouterr().out == ""

"""Errors in the logs of a run, told once each."""

from pathlib import Path

from rollart_flow.runner.noticed import LoggedErrors, telling_errors
from rollart_flow.store.logs import append_to_log, begin_logs
from rollart_flow.telemetry import Progress, ProgressKind

AT = "2026-01-01T00:00:00Z"


def logged(run: str, text: str) -> None:
    """Append lines to the log of a rollout process."""
    append_to_log(run, "rollout", 7, text)


def test_an_error_is_told_once_with_the_place_to_look(tmp_path: Path) -> None:
    run = str(tmp_path / "mine")
    Path(run).mkdir()
    begin_logs(run)
    logged(run, f"{AT} ERROR of an earlier driver\n")
    errors = LoggedErrors(run)
    logged(run, f"{AT} WARNING larger: a warning\n{AT} ERROR larger: failed at step 3\nTraceback\n")
    assert errors.new() == [
        "rollout: larger: failed at step 3 (rollart logs mine --worker rollout)"
    ]
    logged(run, f"{AT} ERROR larger: failed at step 4\n")
    append_to_log(run, "coordinator", 8, f"{AT} ERROR generation-0 died: killed")
    assert errors.new() == []  # the line is not whole yet
    append_to_log(run, "coordinator", 8, "\n")
    assert len(errors.new()) == 1


def test_what_is_logged_last_is_told_before_the_block_ends(tmp_path: Path) -> None:
    run = str(tmp_path)
    begin_logs(run)
    told: list[Progress] = []
    with telling_errors(run, told.append):
        append_to_log(run, "trainer-0", 9, f"{AT} ERROR no memory\n")
    assert [progress.kind for progress in told] == [ProgressKind.NOTE]
    assert told[0].text.startswith("trainer-0: no memory")

"""`rollart logs`: the logs that the processes of a run left."""

import json
from pathlib import Path

import pytest

from rollart_flow.store import Run
from rollart_flow.store.logs import append_to_log, begin_logs
from tests.cli.shell import refused, rollart
from tests.runs import small_run


@pytest.fixture
def store(tmp_path: Path) -> str:
    run = small_run(tmp_path, "mine", steps=0)
    begin_logs(run.uri)
    append_to_log(run.uri, "rollout", 7, "2026-01-01T00:00:00Z INFO began\n\x1b]52;evil\n")
    append_to_log(run.uri, "buffer", 8, "2026-01-01T00:00:01Z INFO began\n")
    return str(tmp_path)


def test_it_lists_the_processes(store: str) -> None:
    rows = json.loads(rollart("logs", "mine", "--store", store, "--json").out)
    assert [(row["process"], row["pid"]) for row in rows] == [("rollout", 7), ("buffer", 8)]
    assert "rollout" in rollart("logs", "mine", "--store", store).out


def test_it_shows_the_log_of_one_process_without_what_a_terminal_obeys(store: str) -> None:
    said = rollart("logs", "mine", "--worker", "rollout", "--store", store).out
    assert said.splitlines()[0] == "==> rollout, process 7 <=="
    assert "\x1b" not in said
    assert "\\u001b]52;evil" in said


def test_following_ends_with_the_run(store: str) -> None:
    said = rollart("logs", "mine", "--follow", "--store", store)
    assert said.code == 0
    assert "buffer: 2026-01-01T00:00:01Z INFO began\n" in said.out


def test_a_wrong_process_is_refused_with_those_that_there_are(store: str) -> None:
    line = refused(rollart("logs", "mine", "--worker", "engine", "--store", store))
    assert line == "run mine has no log of 'engine'; it has logs of rollout, buffer"


def test_logs_of_a_run_in_s3_are_said_to_stay_on_their_machines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rollart_flow.store.resolve", lambda *_: "s3://bucket/mine")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    said = rollart("logs", "mine")
    assert said.code == 0
    assert "stay on the machines of its processes" in said.err
    line = refused(rollart("logs", "mine", "--worker", "driver"))
    assert "it has logs of none; its tables are in an object store" in line


def test_a_real_run_has_the_log_of_its_driver(finished_run: Run) -> None:
    said = rollart("logs", finished_run.path, "--worker", "driver").out
    assert "INFO driver runs as process" in said

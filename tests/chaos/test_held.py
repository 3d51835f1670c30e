"""The check of all scenarios sees what was lost, doubled, repeated, or recorded otherwise."""

import json
from pathlib import Path

import pytest

from rollart_flow.store import Run
from tests.chaos.held import Record, check_held
from tests.copies import copied


def noted(folder: Path, run: Run, *lines: dict[str, object]) -> Record:
    """A record in which every trajectory of a run was acknowledged, with further lines."""
    ids = run.trajectories.select("trajectory_id").collect()["trajectory_id"].to_list()
    record = Record(folder / "record")
    said = [{"at": 1.0, "trajectories": ids}, *lines]
    text = "".join(json.dumps(line) + "\n" for line in said)
    (record.folder / "1.jsonl").write_text(text + '{"at": 2.0, "trajec')
    return record


def test_an_acknowledged_trajectory_that_is_not_in_the_table_is_lost(
    tmp_path: Path, finished_run: Run
) -> None:
    record = noted(tmp_path, finished_run, {"at": 2.0, "trajectories": ["g1-00-gone"]})
    held = check_held(finished_run.uri, record, 4, batch_size=16)
    assert (held.lost, held.doubled, held.holds) == (1, 0, False)


def test_a_row_that_is_there_twice_is_doubled(tmp_path: Path, finished_run: Run) -> None:
    twice = copied(
        finished_run, tmp_path / "twice", {"trajectories": lambda rows: [*rows, rows[0]]}
    )
    held = check_held(twice.uri, noted(tmp_path, twice), 4, batch_size=16)
    assert (held.lost, held.doubled, held.holds) == (0, 1, False)


def test_a_run_that_kept_its_promises_holds(tmp_path: Path, finished_run: Run) -> None:
    lines: list[dict[str, object]] = [
        {"at": 0.5, "fault": "x"},
        {"at": 3.0, "trained": 2},
        {"at": 4.0, "trained": 2},
    ]
    held = check_held(finished_run.uri, noted(tmp_path, finished_run, *lines), 4, batch_size=16)
    assert held.holds
    assert (held.repeated, held.recover_s) == (1, 0.5)


def test_a_step_that_was_acknowledged_with_other_weights_is_found(
    tmp_path: Path, finished_run: Run
) -> None:
    record = noted(tmp_path, finished_run, {"at": 2.0, "step": 3, "fingerprint": "0" * 64})
    with pytest.raises(AssertionError, match="step 3 was acknowledged with other weights"):
        check_held(finished_run.uri, record, 4, batch_size=16)

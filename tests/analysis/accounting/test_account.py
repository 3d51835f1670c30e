"""Use of resources, transfers and costs, from rows that are known."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rollart_flow.analysis.accounting.account import account
from rollart_flow.analysis.accounting.costs import costs
from rollart_flow.analysis.accounting.transfers import transfers
from rollart_flow.analysis.accounting.use import (
    active_seconds,
    engine_use,
    stage_use,
    step_time,
)
from rollart_flow.rows import trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunStatus, open_run
from tests.builders import step_row, trajectory, turn
from tests.runs import BEGAN, new_writer, small_run

PLACED = {
    "domain": "default", "requested": "H20", "fallback": False, "node": "n", "cpus": 2.0,
}  # fmt: skip


def placed(worker: str, seconds: float, **fields: Any) -> dict[str, Any]:
    """A binding of a worker, some seconds after the run began."""
    at = BEGAN + timedelta(seconds=seconds)
    return {**PLACED, "worker": worker, "role": "generation", "granted": "H20", "gpus": 4.0,
            "bound_at": at, **fields}  # fmt: skip


def written(folder: Path, *, attempts: bool = True) -> Run:
    """Two attempts of ten seconds that overlap by half, and a break of a thousand; one step.

    Each has a reset of one second, and two turns of three seconds of generation and one in the
    environment; its score takes half a second.
    """
    writer = new_writer(folder)
    turns = (turn("ab", observation="abc", generate_s=3.0, step_s=1.0, worker="w"),) * 2
    members = [
        trajectory(
            "g", n, trajectory_id=f"t{n}", episode_id=f"t{n}", reset_s=1.0, turns=turns, reward=1.0,
            created_at=BEGAN + timedelta(seconds=at),
            finished_at=BEGAN + timedelta(seconds=at + 10),
            scored_at=BEGAN + timedelta(seconds=at + 10.5),
        )
        for n, at in enumerate((0.0, 5.0, 1000.0))
    ]  # fmt: skip
    if attempts:
        writer.commit("trajectories", trajectories_table(members))
    seconds = {"step_s": 10.0, "wait_s": 8.0, "train_s": 1.0, "suspend_s": 0.0, "update_s": 0.5,
               "resume_s": 0.0, "publish_s": 0.0, "pull_s": 0.25, "exposed_pull_s": 0.125,
               "finished_at": BEGAN + timedelta(seconds=12)}  # fmt: skip
    writer.commit("steps", step_row(1, seconds))
    writer.commit(
        "bindings",
        to_table("bindings", [
            placed("w", 0.0),
            placed("w", 0.0, domain="math"),  # another domain of the same worker
            placed("w", 990.0),  # the session that resumed
            placed("trainer", 0.0, role="training", granted="CPU", gpus=0.0),
        ]),
    )  # fmt: skip
    writer.close(RunStatus.FINISHED)
    return open_run(str(folder / "a"))


def test_time_without_attempts_or_steps_is_not_active(tmp_path: Path) -> None:
    assert active_seconds(written(tmp_path).snapshot()) == pytest.approx(25.0)


def test_an_engine_is_busy_while_it_has_a_request(tmp_path: Path) -> None:
    (row,) = engine_use(written(tmp_path).snapshot()).collect().iter_rows(named=True)
    # Generating from 1 to 4, 5 to 8, 6 to 9 and 10 to 13, and 6 seconds in the later session.
    assert row["busy"] == pytest.approx((3 + 4 + 3 + 6) / 25)
    assert (row["turns"], row["generate_s"]) == (6, 18.0)
    assert row["requests_at_once"] == pytest.approx(18 / 25)


def test_stages_at_once(tmp_path: Path) -> None:
    rows = stage_use(written(tmp_path).snapshot()).collect().iter_rows(named=True)
    assert {row["stage"]: row["seconds"] for row in rows} == pytest.approx(
        {"generation": 18.0, "environments": 9.0, "reward": 1.5, "training": 1.0}
    )


def test_the_wait_for_a_batch_is_divided_as_the_time_of_attempts_is(tmp_path: Path) -> None:
    time = step_time(written(tmp_path).snapshot())
    assert time is not None
    assert time.bound == "generation"
    assert time.shares == pytest.approx({
        "generation": 0.8 * 18 / 27, "environments": 0.8 * 9 / 27, "reading": 0.0, "training": 0.1,
        "weights": 0.05, "publishing": 0.0, "other": 0.05,
    })  # fmt: skip


def test_a_run_without_attempts_waits_for_what_it_reads(tmp_path: Path) -> None:
    time = step_time(written(tmp_path, attempts=False).snapshot())
    assert time is not None
    assert (time.bound, time.shares["generation"]) == ("reading", 0.0)
    assert time.shares["reading"] == pytest.approx(0.8)


def test_bytes_and_seconds_between_the_stages(tmp_path: Path) -> None:
    rows = transfers(written(tmp_path).snapshot()).collect().iter_rows(named=True)
    found = {row["path"]: row for row in rows}
    assert (found["weights"]["calls"], found["weights"]["seconds_max"]) == (1, 0.125)
    turns = found["environment"]
    assert (turns["calls"], turns["bytes_mean"], turns["bytes_max"]) == (6, 5.0, 5.0)
    assert turns["seconds_mean"] == pytest.approx(0.5)  # one second of ten is neither, in two turns
    assert found["reward"]["seconds_mean"] == pytest.approx(0.5)
    tokens = len(trajectory("g", 0).token_ids)
    assert found["reward"]["bytes_mean"] == 13 * tokens + 2 * 5


def test_a_worker_costs_from_its_placement_to_the_last_activity_of_its_session(
    tmp_path: Path,
) -> None:
    found = costs(written(tmp_path).snapshot(), {"H20": 3600.0}).collect()
    engine, trainer = (found.row(n, named=True) for n in (1, 0))
    assert engine["granted"] == "H20"
    assert engine["device_hours"] == pytest.approx(4 * (15 + 20) / 3600)
    assert engine["cost"] == pytest.approx(4 * 35)
    assert (engine["workers"], trainer["workers"], trainer["cost"]) == (1, 1, None)
    assert trainer["device_hours"] == pytest.approx(2 * 1010 / 3600)


def test_the_accounting_names_the_classes_without_a_price(tmp_path: Path) -> None:
    found = account(written(tmp_path).snapshot(), {"H20": 3600.0})
    assert found.cost == pytest.approx(140.0)
    assert found.unpriced == ("CPU",)
    assert found.cost_per_million_trained is None  # nothing was trained on
    assert account(small_run(tmp_path).snapshot(), {"CPU": 1.0}).cost_per_million_trained


def test_a_run_without_rows_has_an_accounting(tmp_path: Path) -> None:
    new_writer(tmp_path).close(RunStatus.FAILED, "nothing began")
    found = account(open_run(str(tmp_path / "a")).snapshot())
    assert (found.active_s, found.steps, found.cost) == (0.0, None, None)

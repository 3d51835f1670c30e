"""The time in environments and boxes, from rows that are known."""

import json
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rollart_flow.cli.environments import environment_use
from rollart_flow.cli.summary import summarize
from rollart_flow.cli.summary_view import render_summary
from rollart_flow.rows import trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.types import Split, Trajectory
from tests.builders import step_row, trajectory, turn
from tests.runs import BEGAN, new_writer


def box(number: int, **fields: object) -> dict[str, object]:
    """A box that lives for ten seconds from its start, which takes one; leased for eight."""
    began = BEGAN + timedelta(seconds=5 * number)
    return {
        "sandbox_id": f"b{number}",
        "variant": "bubblewrap",
        "node": "n",
        "pool": "pool",
        "environment_key": "k",
        "trajectory_id": f"t{number}",
        "task_id": "t",
        "domain": "d",
        "created_at": began,
        "ready_at": began + timedelta(seconds=1),
        "leased_at": began + timedelta(seconds=3),
        "ended_at": began + timedelta(seconds=11),
        "prewarmed": True,
        "wait_s": 0.5,
        "execs": 2,
        "exec_s": 2.0,
        "peak_memory_mb": None,
        "killed_by": "",
        "leaked": 0,
        "error": None,
    } | fields


def attempt(number: int, **fields: Any) -> Trajectory:
    """An attempt of ten seconds: one of reset, two turns of three in the environment and one of
    generation."""
    fields.setdefault("turns", (turn("a", generate_s=1.0, step_s=3.0),) * 2)
    began = BEGAN + timedelta(seconds=5 * number)
    return trajectory(
        "g",
        number,
        trajectory_id=f"t{number}",
        episode_id=f"t{number}",
        reset_s=1.0,
        created_at=began,
        finished_at=began + timedelta(seconds=10),
        **fields,
    )


def written(folder: Path, *attempts: Trajectory, boxes: int = 3) -> Run:
    writer = new_writer(folder)
    writer.commit("trajectories", trajectories_table(attempts))
    writer.commit("steps", step_row(1, {"wait_s": 6.0, "step_s": 12.0}))
    rows = [box(number) for number in range(boxes)]
    if boxes:
        late = {"trajectory_id": None, "task_id": None, "leased_at": None, "wait_s": None}
        rows[-1] = box(boxes - 1, **late, prewarmed=False, killed_by="health", exec_s=0.0, execs=0)
        writer.commit("sandboxes", to_table("sandboxes", rows))
    writer.close(RunStatus.FINISHED)
    return open_run(str(folder / "a"))


def test_the_rule_of_the_number_of_environments_and_the_shares_of_the_wait(tmp_path: Path) -> None:
    elsewhere = attempt(9, split=Split.EVALUATION)
    branch = attempt(1, branch=1)
    run = written(tmp_path, attempt(0), attempt(1), elsewhere, replace(branch, trajectory_id="b"))
    use = environment_use(run.snapshot())
    assert use is not None
    turns = 2 + 2 + 2
    environment_s = 1.0 + 1.0 + 3.0 * turns
    assert use.environment_s == pytest.approx(environment_s / turns)
    assert use.generate_s == pytest.approx(1.0)
    assert use.needed == pytest.approx(environment_s / turns + 1)
    assert use.in_flight == pytest.approx(20 / 15)
    assert use.waited == pytest.approx(0.5 * environment_s / (environment_s + turns))
    assert use.waited_for_boxes == pytest.approx(0.5 * 1.0 / (environment_s + turns))


def test_a_pool_is_summed_up_from_its_rows(tmp_path: Path) -> None:
    use = environment_use(written(tmp_path, attempt(0), attempt(1)).snapshot())
    assert use is not None
    (pool,) = use.pools
    assert (pool.pool, pool.boxes, pool.at_once, pool.ended_early) == ("pool", 3, 3, 1)
    assert pool.leased == pytest.approx(16 / 30)
    assert pool.in_commands == pytest.approx(4 / 16)
    assert pool.prewarmed == pytest.approx(2 / 3)
    assert pool.wait_s == (0.5, 0.5)


def test_the_summary_shows_both_and_json_has_them(tmp_path: Path) -> None:
    summary = summarize(written(tmp_path, attempt(0), attempt(1)))
    out = Console(width=200, record=True, file=StringIO())
    out.print(render_summary(summary))
    text = " ".join(out.export_text().split())
    assert "turns 3.5s in the environment beside 1.0s of generation; N_env: 4.5 for each" in text
    assert "waited 39% of the steps' time for environments, 3% for boxes" in text
    assert "pool 3 boxes, at most 3 at once; 53% of their time leased" in text
    found = json.loads(json.dumps(summary.as_json()["environments"]))
    assert found["needed"] == pytest.approx(4.5)
    assert found["pools"][0]["boxes"] == 3


def test_a_run_without_generations_or_boxes_says_less(tmp_path: Path) -> None:
    use = environment_use(written(tmp_path, attempt(0, turns=()), boxes=0).snapshot())
    assert use is None
    other = tmp_path / "other"
    use = environment_use(written(other, attempt(0), boxes=0).snapshot())
    assert use is not None
    assert use.pools == ()
    assert [name for name, _ in use.lines()] == ["turns", "waited"]

"""What became of attempts: every row has one fate, and every sampled token is in one of them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rollart_flow.analysis.accounting.fates import (
    TRAINED,
    WAITING,
    WITHHELD,
    fates,
    fates_by_domain,
    slow_represented,
)
from rollart_flow.rows import trajectories_table
from rollart_flow.schema import to_table
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.types import Outcome, Reason
from rollart_flow.views.story import story
from tests.builders import batch_row, trajectory
from tests.runs import BATCH_SIZE, BEGAN, DOMAINS, STEPS, new_writer, small_run

SAID = {
    "in the buffer": {WAITING, "unscored", WITHHELD},
    "staleness_bound": {"stale"},
    "group_evicted": {"stale"},
    "group_filtered": {"filtered"},
    "group_complete": {"redundant"},
    "run_stopped": {"cancelled"},
}
"""Fates of the accounting by what the page of a trajectory says."""


GIVEN_UP: dict[str, Any] = {
    "reward": None, "outcome": Outcome.STALE, "reason": Reason.STALENESS_BOUND,
}  # fmt: skip


def test_fates_are_those_that_the_page_of_each_trajectory_tells(demo_run: Run) -> None:
    tables = demo_run.snapshot()
    rows = fates(tables).join(tables.trajectories.select("trajectory_id", "outcome"),
                              on="trajectory_id").collect()  # fmt: skip
    seen = set()
    for row in rows.group_by("fate").head(3).iter_rows(named=True):
        told = story(tables, row["trajectory_id"]).collect().item(0, "fate")
        allowed = SAID.get(told, {told, row["outcome"], "failed", WITHHELD})
        assert row["fate"] in allowed, (row, told)
        seen.add(row["fate"])
    assert {TRAINED, "stale", "redundant", "failed", "cancelled", "evaluation"} <= seen


def test_each_row_is_counted_once_with_all_its_sampled_tokens(demo_run: Run) -> None:
    tables = demo_run.snapshot()
    counted = fates_by_domain(tables).collect()
    versions = pl.col("token_versions").list
    whole = tables.trajectories.select(
        rows=pl.len(), sampled=(versions.len() - versions.count_matches(-1)).sum()
    ).collect()
    assert counted.select(pl.col("rows", "sampled").sum()).row(0) == whole.row(0)


def test_attempts_tokens_and_seconds_of_a_known_run(tmp_path: Path) -> None:
    counted = fates_by_domain(small_run(tmp_path).snapshot()).collect()
    by_fate = counted.group_by("fate").agg(pl.col("attempts", "sampled", "score_s").sum())
    found = {row["fate"]: row for row in by_fate.iter_rows(named=True)}
    assert {fate: row["attempts"] for fate, row in found.items()} == {
        TRAINED: STEPS * BATCH_SIZE, "failed": STEPS, "stale": STEPS, "redundant": STEPS,
    }  # fmt: skip
    assert found[TRAINED]["sampled"] == STEPS * BATCH_SIZE // len(DOMAINS) * (3 * 2 + 2)
    assert found[TRAINED]["score_s"] == pytest.approx(0.1 * STEPS * BATCH_SIZE)
    shares = counted.group_by("domain").agg(pl.col("share").sum())["share"]
    assert list(shares) == pytest.approx([1.0] * len(DOMAINS))


def test_a_score_by_a_clock_that_is_a_little_behind_takes_no_negative_time(tmp_path: Path) -> None:
    at = BEGAN + timedelta(seconds=2)
    scored = trajectory(
        "g", 0, reward=1.0, created_at=BEGAN, finished_at=at,
        scored_at=at - timedelta(milliseconds=1),
    )  # fmt: skip
    writer = new_writer(tmp_path)
    writer.commit("trajectories", trajectories_table([scored]))
    writer.close(RunStatus.FINISHED)
    row = fates(open_run(str(tmp_path / "a")).snapshot()).collect().row(0, named=True)
    assert (row["score_s"], row["seconds"]) == (0.0, 2.0)


def biased(folder: Path, trained: set[int], stale: frozenset[int] = frozenset()) -> Run:
    """A run of eight groups of one attempt each, the later the slower."""
    members = [
        trajectory(
            f"g{n}", 0, trajectory_id=f"t{n}", episode_id=f"t{n}", created_at=BEGAN,
            finished_at=BEGAN + timedelta(seconds=1 + n),
            **GIVEN_UP if n in stale else {"reward": 1.0},
        )
        for n in range(8)
    ]  # fmt: skip
    writer = new_writer(folder)
    writer.commit("trajectories", trajectories_table(members))
    manifest = [batch_row(1, n, f"t{n}", f"g{n}") for n in sorted(trained)]
    writer.commit("batches", to_table("batches", manifest))
    writer.close(RunStatus.FINISHED)
    return open_run(str(folder / "a"))


def test_slow_groups_that_no_batch_holds_are_not_known_yet(tmp_path: Path) -> None:
    assert slow_represented(biased(tmp_path, {0, 1, 2, 3, 4, 5}).snapshot()) == 1.0


def test_slow_groups_that_were_given_up_count_as_passed_over(tmp_path: Path) -> None:
    run = biased(tmp_path, {0, 1, 2, 3, 4, 6}, stale=frozenset({5, 7}))
    assert slow_represented(run.snapshot()) == pytest.approx((1 / 2) / (6 / 8))


def test_nothing_is_said_of_a_run_that_trained_on_nothing(tmp_path: Path) -> None:
    assert slow_represented(biased(tmp_path, set()).snapshot()) is None

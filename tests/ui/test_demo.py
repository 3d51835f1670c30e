"""The demonstration run has rows of every kind, and is the same each time."""

from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal

from rollart_flow.analysis.delivery import token_account
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.schema import TABLES
from rollart_flow.store import Run
from rollart_flow.types import EventKind, Outcome, Reason
from rollart_flow.ui.demo.run import write_demo_run


def test_every_table_has_rows(demo_run: Run) -> None:
    tables = demo_run.snapshot()
    assert not [name for name in TABLES if tables.table(name).head(1).collect().is_empty()]


def test_every_outcome_and_every_kind_of_event_and_call_is_there(demo_run: Run) -> None:
    tables = demo_run.snapshot()
    assert set(tables.trajectories.collect()["outcome"]) == set(Outcome)
    assert set(tables.events.collect()["kind"]) == set(EventKind)
    assert set(tables.exchanges.collect()["kind"]) == set(CallKind)


def test_every_token_that_was_sampled_is_in_a_row(demo_run: Run) -> None:
    account = token_account(demo_run)
    assert account is not None
    assert account.missing == 0
    assert set(account.reasons) == {Reason.UNTRAINED_CALL, Reason.UNANSWERED}


def test_the_moments_of_a_trained_trajectory_are_in_order(demo_run: Run) -> None:
    tables = demo_run.snapshot()
    batched = tables.batches.select("trajectory_id", batched_at="committed_at")
    rows = tables.trajectories.join(batched, on="trajectory_id").select(
        pl.col("created_at") < pl.col("finished_at"),
        pl.col("finished_at") < pl.col("scored_at"),
        pl.col("scored_at") <= pl.col("committed_at"),
        pl.col("committed_at") < pl.col("batched_at"),
    )
    assert rows.collect().min().row(0) == (True,) * 4


def test_no_trajectory_is_staler_than_the_bound(demo_run: Run) -> None:
    ages = demo_run.batches.select(pl.col("staleness").max(), pl.col("lag").max()).collect()
    assert ages.row(0) == (1, 2)


def test_its_images_are_whole(demo_run: Run) -> None:
    names = demo_run.trajectories.select(pl.col("images").explode().drop_nulls().unique()).collect()
    assert {demo_run.image(name).size for name in names["images"]} == {(48, 48)}


def test_it_is_the_same_each_time(demo_run: Run, tmp_path: Path) -> None:
    again, first = write_demo_run(tmp_path).snapshot(), demo_run.snapshot()
    for name in TABLES:
        assert_frame_equal(again.table(name).collect(), first.table(name).collect())


def test_a_fork_of_it_names_its_parent(demo_run: Run, tmp_path: Path) -> None:
    fork = write_demo_run(tmp_path, "demo-fork", parent=demo_run)
    assert fork.info.parent is not None
    assert (fork.info.parent.uri, fork.info.parent.step) == (demo_run.uri, 4)
    assert fork.steps.select("step").collect()["step"].sort().to_list() == [5, 6]

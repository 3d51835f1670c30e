"""Evaluation with several samples of each task, and redundant attempts, in a real run."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow.operators.scores import wilson
from rollart_flow.store import open_run
from tests.cli.shell import rollart
from tests.conftest import SMALL_PIPELINE
from tests.runner.local import run_with

SAMPLES, REDUNDANCY, TASKS = 3, 1, 4


def test_samples_are_measured_as_pass_at_k_and_the_slowest_are_left_out(tmp_path: Path) -> None:
    source = SMALL_PIPELINE.replace("steps=4", "steps=1")
    found = f"every=1, samples={SAMPLES}, redundancy={REDUNDANCY}, episodes={TASKS}"
    source = source.replace("policy, lake, every=1, episodes=2", f"policy, sums, {found}")
    run = run_with(source, tmp_path, executor="inline")
    scores = run.evaluations.sort("seq").collect().filter(~pl.col("metric").str.contains("/"))
    assert set(scores["metric"]) == {
        "success", "success_sampled", "pass@2", "pass@3", "reward_mean", "turns_mean",
    }  # fmt: skip
    assert set(scores["step"]) == {0, 1}
    assert set(scores.filter(metric="success")["n"]) == {TASKS}
    assert set(scores.filter(metric="pass@3")["n"]) == {TASKS * SAMPLES}
    fractions = scores.filter(~pl.col("metric").str.ends_with("_mean"))
    assert fractions.select(pl.col("value").is_between("low", "high")).to_series().all()
    for row in scores.filter(metric="success").iter_rows(named=True):
        assert (row["low"], row["high"]) == wilson(row["value"], TASKS)

    rows = run.trajectories.filter(pl.col("split") == "evaluation").collect()
    assert rows["trajectory_id"].is_unique().all()
    sampled = rows.filter(pl.col("group_id").str.contains("/success_sampled/arithmetic/"))
    groups = sampled.group_by("group_id").agg(
        attempts=pl.len(),
        tasks=pl.col("task_id").n_unique(),
        seeds=pl.col("env_seed").n_unique(),
        redundant=(pl.col("outcome") == "redundant").sum(),
    )
    for name, wanted in (
        ("attempts", SAMPLES + REDUNDANCY), ("tasks", 1), ("seeds", 1), ("redundant", REDUNDANCY),
    ):  # fmt: skip
        assert set(groups[name]) == {wanted}
    counted = sampled.filter(pl.col("outcome") != "redundant")
    value = pytest.approx(scores.filter(metric="reward_mean", step=0)["value"][0])
    of_start = counted.filter(pl.col("group_id").str.starts_with("v000000/success_sampled/"))
    assert value == of_start["reward"].mean()

    shown = rollart("show", str(open_run(run.uri).uri))
    assert shown.code == 0
    assert "95% interval" in shown.out
    assert "pass@3" in shown.out

"""Settings of a pipeline that change how it runs: bounds, filters, redundancy, affinity."""

from pathlib import Path

import polars as pl

from rollart_flow.types import EventKind, Outcome, Reason
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

FILTERED = """
import polars as pl

prompts = tasks(Coin(), group_size=2)
trajectories = rollout(
    prompts, policy, max_tokens=4, hw_affinity={"coin": "H800", "default": "H20"}
)
heard = filter(trajectories, pl.col("env_seed") % 3 > 0, name="heard")
scored = reward(heard, tokens_seen)
liked = filter(scored, pl.col("reward") > 0.1, name="liked")
batches = buffer(liked, batch_size=4, alpha=0)
pipeline = Pipeline("filtered", train(batches, policy, gated, steps=4))
"""

REDUNDANT = """
prompts = tasks(Coin(), group_size=2)
trajectories = rollout(prompts, policy, max_tokens=4, redundancy=1, extra_groups=1)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=2)
pipeline = Pipeline("redundant", train(batches, policy, gated, steps=5))
"""


def test_in_turns_with_filters_on_classes_that_are_not_there(tmp_path: Path) -> None:
    run = run_with(source(tmp_path, FILTERED), tmp_path, executor="inline")
    check_sound(run, 4, batch_size=4, alpha=0)
    rows, batches = run.trajectories.collect(), run.batches.collect()
    assert (batches["policy_version"] == batches["trained_version"]).all(), "in turns"
    assert set(batches["staleness"]) == {0}

    finished = rows.filter(pl.col("outcome").is_in([Outcome.COMPLETED, Outcome.TRUNCATED]))
    unheard = finished.filter(pl.col("env_seed") % 3 == 0)
    disliked = finished.filter(pl.col("env_seed") % 3 > 0, pl.col("reward") <= 0.1)
    assert unheard["reward"].null_count() == unheard.height, "dropped before it was scored"
    dropped = events(run, EventKind.DROP).filter(pl.col("reason") == Reason.FILTERED)
    assert sorted(dropped["subject"]) == sorted(
        [*unheard["trajectory_id"], *disliked["trajectory_id"]]
    )
    assert not set(dropped["subject"]) & set(batches["trajectory_id"])
    assert disliked.height > 0
    assert unheard.height > 0

    fallbacks = events(run, EventKind.FALLBACK)
    assert sorted(fallbacks["subject"]) == ["H20", "H800"]
    asked = run.bindings.filter(pl.col("role") == "generation").collect()
    assert sorted(asked.select("domain", "requested", "granted", "fallback").rows()) == [
        ("coin", "H800", "CPU", True), ("default", "H20", "CPU", True),
    ]  # fmt: skip


def test_surplus_attempts_are_cancelled_within_a_wider_bound(tmp_path: Path) -> None:
    run = run_with(source(tmp_path, REDUNDANT), tmp_path, executor="inline")
    check_sound(run, 5, alpha=2)
    rows = run.trajectories.collect()
    trained = run.batches.group_by("group_id").len().collect()
    assert set(trained["len"]) == {2}, "a group is trained on with its size, whatever ran besides"
    surplus = rows.filter(
        pl.col("group_id").is_in(trained["group_id"].implode()),
        ~pl.col("trajectory_id").is_in(run.batches.collect()["trajectory_id"].implode()),
    )
    assert surplus.height > 0
    cancelled = surplus.filter(pl.col("outcome") == Outcome.REDUNDANT)
    assert set(cancelled["reason"]) <= {Reason.GROUP_COMPLETE}
    late = surplus.filter(pl.col("outcome") != Outcome.REDUNDANT)["trajectory_id"]
    drops = events(run, EventKind.DROP).filter(pl.col("reason") == Reason.GROUP_COMPLETE)
    stopped = set(rows.filter(pl.col("outcome") == Outcome.CANCELLED)["trajectory_id"])
    assert set(late) - stopped <= set(drops["subject"])

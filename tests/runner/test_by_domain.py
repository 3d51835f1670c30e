"""A run whose domains have settings of their own, and its replay."""

from pathlib import Path

import polars as pl

from rollart_flow.replay import replay_trajectory
from tests.conftest import SMALL_PIPELINE
from tests.runner.local import run_with

OWN = """by_domain={"frozenlake": {"max_tokens": 3, "max_turns": 2, "temperature": 0.5}}"""


def source() -> str:
    """The small pipeline: one step, and settings of their own for the lake, in each node."""
    found = SMALL_PIPELINE.replace("steps=4", "steps=1").replace("every=1", f"every=1, {OWN}")
    found = found.replace("policy, max_tokens=6, max_turns=3", f"policy, max_tokens=6, {OWN}")
    own = 'shaped, by_domain={"frozenlake": {"fn": short}}'
    found = found.replace("reward(trajectories, shaped)", f"reward(trajectories, {own})")
    short = "def short(trajectory):\n    return float(len(trajectory.token_ids) % 7)"
    assert found.count("by_domain") == 3
    return found.replace("policy = Policy", f"{short}\n\n\npolicy = Policy", 1)


def test_every_attempt_has_the_settings_and_the_reward_of_its_domain(tmp_path: Path) -> None:
    run = run_with(source(), tmp_path, executor="inline")
    rows = run.trajectories.with_columns(
        turns=pl.col("turns").list.len(),
        tokens=pl.col("token_ids").list.len(),
        **{name: pl.col("sampling").struct.field(name) for name in ("max_tokens", "temperature")},
    ).collect()
    lake = rows.filter(domain="frozenlake")
    assert set(lake["split"]) == {"train", "evaluation"}
    assert set(lake["max_tokens"]) == {3}
    assert set(lake.filter(split="train")["temperature"]) == {0.5}
    assert set(lake.filter(split="evaluation")["temperature"]) == {0.0, 0.5}
    assert lake["turns"].max() == 2
    scored = lake.filter(pl.col("reward").is_not_null())
    assert scored.height > 4
    assert (scored["reward"] == scored["tokens"] % 7).all()
    sums = rows.filter(domain="arithmetic")
    assert set(sums["max_tokens"]) == {6}
    assert set(sums["temperature"]) == {1.0}
    assert sums["reward_parts"].drop_nulls().len() > 4

    first = scored.filter(split="train", outcome="truncated", turns=2)["trajectory_id"][0]
    replayed = replay_trajectory(run.uri, first)
    assert replayed.equal, replayed.divergence

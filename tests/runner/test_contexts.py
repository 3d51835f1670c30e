"""Runs whose conversations get longer than the context: trained, stored, shown and replayed."""

import json
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_step, replay_trajectory
from rollart_flow.store import open_run
from tests.cli.shell import rollart
from tests.runner.talking import TALKING

PIPELINE = (
    TALKING
    + """
policy = Policy.tiny(hidden=16, layers=1, heads=2, max_context=CONTEXT)
prompts = tasks(Talking(turns=6, max_turns=30), group_size=4)
attempts = rollout(prompts, policy, max_tokens=6, context="POLICY")
batches = buffer(reward(attempts), batch_size=8, alpha=1)
pipeline = Pipeline("talk", train(batches, policy, grpo(), steps=2))
"""
)


@pytest.mark.parametrize(
    ("context", "tokens", "seen"),
    [
        ("cut(at=0.5, keep=0.25)", 112, "Go on."),
        pytest.param("notes(at=0.5, keep=0.2)", 200, "read_notes", marks=pytest.mark.whole),
        pytest.param("summarize(at=0.2)", 400, "Summary of", marks=pytest.mark.whole),
    ],
)
def test_a_run_with_a_context_policy(context: str, tokens: int, seen: str, tmp_path: Path) -> None:
    text = PIPELINE.replace("POLICY", context).replace("CONTEXT", str(tokens))
    loaded = load_source(text, tmp_path / "talk.py")
    run = open_run(runner.run(loaded, store=str(tmp_path), executor="inline").uri)
    rows = run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()
    later = rows.filter(pl.col("branch") > 0)
    assert later.height > 0
    assert (rows["reason"].is_null()).all(), "no attempt ended because its chain was too long"
    for row in later.iter_rows(named=True):
        assert not any(row["action_mask"][: row["shared_tokens"]])
        assert len(row["token_ids"]) <= tokens
    assert any(seen in messages for messages in later["messages"])
    assert replay_step(run.uri, 2).equal
    chosen = later.row(0, named=True)
    for trajectory_id in (chosen["trajectory_id"], chosen["episode_id"]):
        replayed = replay_trajectory(run.uri, trajectory_id)
        assert replayed.equal, replayed.divergence
    shown = rollart("show", run.uri, "--trajectory", chosen["trajectory_id"]).out
    number = max(message["turn"] for message in json.loads(chosen["messages"]))
    assert f"turn {number + 1} " in shown

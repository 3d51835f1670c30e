"""Whatever a finished run sampled was trained on, or has a reason; events and rows agree."""

import json
import re
from pathlib import Path

import polars as pl

from rollart_flow import runner
from rollart_flow.pipeline.loading import load_source
from rollart_flow.store import open_run
from rollart_flow.types import EventKind, Outcome

READING = Path(__file__).parents[2] / "docs" / "reading.md"

PIPELINE = """
import polars as pl

from rollart_flow import Pipeline, Policy, buffer, filter, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Arithmetic, FrozenLake

policy = Policy.tiny(hidden=16, layers=1, heads=2)
prompts = tasks(Arithmetic(digits=1), FrozenLake(size=4), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=4, redundancy=2, extra_groups=1)
short = filter(reward(trajectories), pl.col("task_id").hash() % 5 != 0, name="some")
batches = buffer(short, batch_size=8, alpha=1)
pipeline = Pipeline("reasons", train(batches, policy, grpo(), steps=8))
"""


def test_what_was_not_trained_on_has_a_reason(tmp_path: Path) -> None:
    loaded = load_source(PIPELINE, tmp_path / "reasons.py")
    run = open_run(runner.run(loaded, store=str(tmp_path), executor="inline").uri)
    query = re.search(r'WHY = """(.*?)"""', READING.read_text(), re.DOTALL)
    assert query is not None
    found = {why: rows for why, _, rows, _ in run.sql(query[1]).iter_rows()}
    assert None not in found
    assert found["trained"] == run.batches.collect().height == 64
    assert sum(found.values()) == run.trajectories.collect().height
    assert len(found) > 2, f"the run has too few reasons to show anything: {found}"
    aborts = run.events.filter(pl.col("kind") == EventKind.ABORT).collect()
    outcomes = dict(run.trajectories.select("trajectory_id", "outcome").collect().iter_rows())
    said = {
        subject: json.loads(detail)["outcome"]
        for subject, detail in aborts.select("subject", "detail").iter_rows()
    }
    assert said == {subject: outcomes[subject] for subject in said}
    cancelled = {Outcome.STALE, Outcome.REDUNDANT, Outcome.CANCELLED}
    assert set(said.values()) <= {each.value for each in cancelled}

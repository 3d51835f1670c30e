"""Runs whose agent is a program in a box, from its first call to a training step."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.store import Run
from tests.runner.local import run_with

pytestmark = pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())

PIPELINE = """
from pathlib import Path

from rollart_flow import Harness, Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import SweSample
from rollart_flow.harness import bash_agent

TURNS = 2
agent = Harness(
    "command",
    command=["python3", "-c", Path(bash_agent.__file__).read_text(), str(TURNS)],
    wire="chat",
    variables={
        "OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}",
    },
    run_slots=2,
)
policy = Policy.tiny(hidden=32, max_context=4096)
prompts = tasks(SweSample(folder="FOLDER", per_package=1), group_size=2)
scored = reward(rollout(prompts, policy, agent=agent, max_tokens=4))
steps = train(buffer(scored, batch_size=2, alpha=0), policy, grpo(), steps=1)
pipeline = Pipeline("agents", steps)
"""


def check(run: Run) -> None:
    """The trained rows of a run are the calls of programs, each token once."""
    assert run.steps.collect().height == 1
    rows = run.trajectories.join(run.batches, on="trajectory_id", how="semi").collect()
    assert rows.height == 2
    assert set(rows["outcome"]) == {"completed"}
    assert set(rows["env_version"]) == {"swe/1+command/1"}
    assert set(rows["reward"]) == {0.0}
    assert set(rows["turns"].list.len()) == {2}
    assert rows["messages"].str.contains("Call bash, or say done.").all()
    trained = rows.select("trajectory_id", tokens=pl.col("action_mask").list.sum())
    calls = run.exchanges.collect().join(trained, on="trajectory_id")
    assert calls.height == 4
    sums = calls.group_by("trajectory_id").agg(
        pl.col("trained_tokens").sum(), pl.col("tokens").first()
    )
    assert (sums["trained_tokens"] == sums["tokens"]).all()
    assert set(calls["wire"]) == {"chat"}
    assert sorted(calls["evidence"].to_list()) == ["root", "root", "structure", "structure"]
    failed = run.verdicts.filter(pl.col("key").str.starts_with("fail_to_pass/")).collect()
    assert set(rows["trajectory_id"]) <= set(failed["trajectory_id"])


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.whole)])
def test_a_program_in_a_box_is_trained(tmp_path: Path, executor: str) -> None:
    check(run_with(PIPELINE.replace("FOLDER", str(tmp_path)), tmp_path, executor=executor))

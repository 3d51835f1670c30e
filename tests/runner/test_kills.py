"""SIGKILL and SIGSTOP of engines while a pipeline runs: it goes on, nothing lost or taken twice.

Every process of a run is killed once in `test_restarts`.
"""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import ray

from rollart_flow.runner.processes import RunProcesses
from rollart_flow.types import Chunk, EventKind, GenerationRequest, Reason
from tests.runner.local import events, pid_of, run_with
from tests.runner.world import check_sound, source

pytestmark = pytest.mark.usefixtures("shared_ray")


@pytest.mark.whole
def test_a_worker_that_dies_twice_is_left_out(tmp_path: Path, plants: list[RunProcesses]) -> None:
    def after_step(step: int) -> None:
        if step in (1, 3):
            os.kill(pid_of(plants[-1].engines.workers[0]), signal.SIGKILL)

    run = run_with(source(tmp_path, steps=6, engine_workers=2), tmp_path, after_step)
    check_sound(run, 6)
    dead, alive = plants[-1].engines.workers
    crashes = events(run, EventKind.CRASH).filter(pl.col("detail").str.contains("removed"))
    assert crashes["subject"].to_list() == [dead.name]
    played = run.trajectories.filter(pl.col("outcome") == "completed", pl.col("split") == "train")
    newest = played.sort("seq").tail(1).collect()
    assert {turn["worker"] for turn in newest["turns"][0]} == {alive.name}


HANGS = """
prompts = tasks(Coin(), group_size=4)
trajectories = rollout(prompts, policy, max_tokens=6, engine_workers=2, engine_timeout_s=3)
batches = buffer(reward(trajectories, tokens_seen), batch_size=8, alpha=0)
pipeline = Pipeline("coins", train(batches, policy, gated, steps=3))
"""


HANGS_SCORED = HANGS.replace(
    'pipeline = Pipeline("coins", ',
    "scores = evaluate(policy, Coin(), every=1, episodes=2, max_tokens=6)\n"
    'pipeline = Pipeline("coins", scores, ',
)


def hang_in_the_midst(worker: Any) -> int:
    """Stop the process of an engine worker once it has drawn something; its pid."""
    generate = worker._engine.generate

    async def stopping(request: GenerationRequest) -> AsyncIterator[Chunk]:
        async for chunk in generate(request):
            yield chunk
            os.kill(os.getpid(), signal.SIGSTOP)

    worker._engine.generate = stopping
    return os.getpid()


@pytest.mark.whole
def test_an_engine_that_hangs_is_restarted_and_its_trajectories_go_on_elsewhere(
    tmp_path: Path, plants: list[RunProcesses]
) -> None:
    stopped: list[int] = []

    def after_step(step: int) -> None:
        if step == 1:
            actor = plants[-1].engines.workers[0].actor
            stopped.append(ray.get(actor.__ray_call__.remote(hang_in_the_midst)))

    run = run_with(source(tmp_path, HANGS), tmp_path, after_step)
    check_sound(run, 3, alpha=0)
    hung, well = plants[-1].engines.workers
    crashes = events(run, EventKind.CRASH).filter(subject=hung.name)
    assert crashes["detail"].str.contains("it hangs: no sign of life within 3 s").sum() == 1
    resumed = events(run, EventKind.RETRY).filter(domain="coin")
    assert set(resumed["reason"]) == {Reason.ENGINE_ERROR}
    rows = run.trajectories.filter(pl.col("trajectory_id").is_in(resumed["subject"].implode()))
    assert well.name in {turn["worker"] for turns in rows.collect()["turns"] for turn in turns}
    assert set(run.trajectories.collect()["outcome"]) <= {"completed", "truncated", "cancelled"}
    with pytest.raises(ProcessLookupError):
        os.kill(stopped[0], 0)


@pytest.mark.whole
def test_an_evaluator_that_hangs_is_restarted_and_every_version_is_scored(
    tmp_path: Path, plants: list[RunProcesses]
) -> None:
    def after_step(step: int) -> None:
        if step == 1:
            evaluators = plants[-1].evaluators
            assert evaluators is not None
            ray.get(evaluators.workers[0].actor.__ray_call__.remote(hang_in_the_midst))

    run = run_with(source(tmp_path, HANGS_SCORED), tmp_path, after_step)
    check_sound(run, 3, alpha=0)
    crashes = events(run, EventKind.CRASH).filter(subject="evaluator-0")
    assert crashes["detail"].str.contains("it hangs: no sign of life within 3 s").sum() == 1
    assert set(run.evaluations.collect()["policy_version"]) == {0, 1, 2, 3}

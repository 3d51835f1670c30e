"""SIGKILL and SIGSTOP of workers while a pipeline runs: it goes on, nothing lost or taken twice."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import ray

from rollart_flow.runner.executors import ray as ray_executor
from rollart_flow.runner.processes import RunProcesses
from rollart_flow.store import RunStatus
from rollart_flow.types import Chunk, EventKind, GenerationRequest, Reason
from tests.runner.local import events, pid_of, run_with
from tests.runner.world import check_sound, open_gate, source, was_taken

pytestmark = pytest.mark.usefixtures("shared_ray")

STEPS = 12


def test_any_process_of_the_streams_and_any_engine_may_be_killed(
    tmp_path: Path, plants: list[RunProcesses], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer is killed once more than it may come back alone: then all start again.

    The train operator and the sources of the streams are killed in `test_restarts`.
    """
    monkeypatch.setattr(ray_executor, "SINGLE_RESTARTS", 1)

    def after_step(step: int) -> None:
        processes = plants[-1]
        if step == 1:
            (trainer,) = processes.trainers.workers
            above = os.getpriority(os.PRIO_PROCESS, pid_of(trainer)) - os.nice(0)
            assert above > 0, "a trainer on shared CPUs lets the streams go first"
            open_gate(tmp_path, "step")  # the rollout process, in the midst of its attempts
        elif step == 3:
            open_gate(tmp_path, "reward")
        elif step == 5:
            os.kill(pid_of(processes.engines.workers[0]), signal.SIGKILL)
        elif step == 9:
            assert processes.evaluators is not None
            os.kill(pid_of(processes.evaluators.workers[0]), signal.SIGKILL)
        elif step in (10, 11):
            os.kill(pid_of(processes.buffer), signal.SIGKILL)

    text = source(tmp_path, steps=STEPS, every=3)
    run = run_with(text, tmp_path, after_step)
    for gate in ("step", "reward"):
        assert was_taken(tmp_path, gate), gate
    check_sound(run, STEPS)
    assert sorted(set(run.evaluations.collect()["policy_version"])) == [0, 3, 6, 9, 12]
    pulled = run.steps.filter(pl.col("step").is_between(2, 4)).collect()
    assert (pulled["pull_s"] > 0).all(), "each swaps to the version of the step before"
    assert len(plants) == 2, "all processes were started again once"
    (engine,) = plants[0].engines.workers
    returned = events(run, EventKind.RETRY).filter(subject=engine.name)
    assert returned["reason"].to_list() == [Reason.WORKER_LOST]
    assert returned["policy_version"][0] >= 4, "it came back under the version of that moment"
    assert set(run.trajectories.collect()["outcome"]) <= {"completed", "truncated", "cancelled"}
    assert run.info.status is RunStatus.FINISHED
    crashes = events(run, EventKind.CRASH)
    assert crashes["subject"].to_list().count("buffer") == 2
    assert set(crashes["reason"]) == {Reason.WORKER_LOST}


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

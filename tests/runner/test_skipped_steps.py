"""A batch that cannot be trained on is passed: its step is skipped, and the run goes on."""

from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.errors import RunFailedError
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay.step import replay_step
from rollart_flow.store import Run, RunStatus, open_run
from rollart_flow.types import EventKind

PIPELINE = '''
from rollart_flow import Pipeline, Policy, buffer, reward, rollout, tasks, train
from rollart_flow.algorithms import dr_grpo
from rollart_flow.envs import Arithmetic


def judge(trajectory):
    """A reward so large, from the versions <poisoned>, that the gradient overflows."""
    sign = 1.0 if trajectory.attempt % 2 else -1.0
    return sign * (1e30 if trajectory.policy_version_start in <poisoned> else 1.0)


policy = Policy.tiny(hidden=16, layers=1, heads=2)
trajectories = rollout(tasks(Arithmetic(digits=1), group_size=4), policy, max_tokens=4)
batches = buffer(reward(trajectories, judge), batch_size=4, alpha=0)
steps = train(batches, policy, dr_grpo(constant_tokens=4), steps=5, checkpoint_every=4<settings>)
pipeline = Pipeline("poisoned", steps)
'''


def run(folder: Path, poisoned: set[int], settings: str = "") -> Run:
    text = PIPELINE.replace("<poisoned>", str(poisoned)).replace("<settings>", settings)
    loaded = load_source(text, folder / "poisoned.py")
    result = runner.run(loaded, store=str(folder), name="poisoned", executor="inline")
    return open_run(result.uri)


def test_a_poisoned_batch_is_skipped_and_the_run_finishes(tmp_path: Path) -> None:
    made = run(tmp_path, {1, 2})
    assert made.info.status is RunStatus.FINISHED
    steps = made.steps.sort("step").collect()
    assert [why is not None for why in steps["skipped"]] == [False, True, True, False, False]
    assert "not finite" in steps["skipped"][1]
    marks = steps["fingerprint"]
    assert marks[0] == marks[1] == marks[2] != marks[3]
    events = made.events.filter(pl.col("kind") == EventKind.SKIP).collect()
    assert events["step"].to_list() == [2, 3]
    replayed = [replay_step(made.uri, step) for step in (3, 4, 5)]
    assert all(each.equal for each in replayed)


def test_a_run_that_failed_on_a_poisoned_batch_passes_it_when_it_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"not finite.*train\.max_skipped"):
        run(tmp_path, {1, 2, 3}, ", max_skipped=2")
    made = open_run(str(tmp_path / "poisoned"))
    assert made.info.status is RunStatus.FAILED
    assert made.steps.collect().height == 3
    result = runner.resume(made.uri, executor="inline")
    assert result.status is RunStatus.FINISHED
    skipped = made.steps.sort("step").collect()["skipped"]
    assert [why is not None for why in skipped] == [False, True, True, True, False]


def test_with_a_limit_of_zero_the_first_poisoned_batch_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match="not finite"):
        run(tmp_path, {0}, ", max_skipped=0")
    assert open_run(str(tmp_path / "poisoned")).steps.collect().height == 0

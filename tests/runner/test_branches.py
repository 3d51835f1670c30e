"""A run whose attempts have one to three branches: stored, batched, trained on and replayed."""

import re
from pathlib import Path

import polars as pl
import pytest

from rollart_flow import runner
from rollart_flow.operators.recovery import batch_of, recover
from rollart_flow.pipeline.loading import load_source
from rollart_flow.replay import replay_step
from rollart_flow.store import Run, open_run

READING = Path(__file__).parents[2] / "docs" / "reading.md"
PIPELINE = """
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import polars as pl

from rollart_flow import Pipeline, Policy, buffer, filter, reward, rollout, tasks, train
from rollart_flow.algorithms import grpo
from rollart_flow.envs import Domain, Environment
from rollart_flow.types import Task
from rollart_flow.types.branching import Retry


class Retried(Environment):
    inline = True
    converses = True

    def reset(self, seed, task):
        self.left = seed % 3
        return f"{task}: say something long", {}

    def step(self, action):
        self.left -= 1
        if self.left >= 0:
            return Retry(0, f"again, {self.left}"), 0.0, False, False, {}
        return "", len(action.text) / 4, True, False, {}


@dataclass(frozen=True)
class Retrying(Domain):
    name: ClassVar[str] = "retrying"
    environment: ClassVar[type[Environment]] = Retried
    max_turns: ClassVar[int] = 4

    def tasks(self, split, seed):
        for number in count():
            yield Task(f"t{number}", self.name, f"{number}")


def turns(trajectory):
    return sum(turn.reward for turn in trajectory.turns) + len(trajectory.turns)


policy = Policy.tiny(hidden=16, layers=1, heads=2)
attempts = rollout(tasks(Retrying(), group_size=4), policy, max_tokens=6, redundancy=1)
scored = filter(reward(attempts, turns), pl.col("task_id").hash() % 5 != 0, name="some")
batches = buffer(scored, batch_size=8, alpha=1)
algorithm = grpo(aggregation="sequence")
steps = train(batches, policy, algorithm, steps=3, minibatches=2, checkpoint_every=1)
pipeline = Pipeline("branches", steps)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("branches")
    loaded = load_source(PIPELINE, folder / "branches.py")
    return open_run(runner.run(loaded, store=str(folder), executor="inline").uri)


def test_a_batch_has_whole_episodes_and_counts_them(run: Run) -> None:
    rows = run.trajectories.collect()
    assert set(rows["branch"]) == {0, 1, 2}
    trained = run.batches.collect()
    of_step = trained.group_by("step").agg(pl.col("episode_id").n_unique())
    assert of_step["episode_id"].to_list() == [8, 8, 8]
    whole = rows.filter(pl.col("episode_id").is_in(trained["episode_id"].implode()))
    assert set(whole["trajectory_id"]) == set(trained["trajectory_id"])
    assert trained["trajectory_id"].is_unique().all()
    for name in ("reward", "outcome"):
        assert (whole.group_by("episode_id").agg(pl.col(name).n_unique())[name] == 1).all()
    for name in ("staleness", "lag", "weight"):
        assert (trained.group_by("episode_id").agg(pl.col(name).n_unique())[name] == 1).all()
    assert run.steps.collect()["trajectories"].sum() == trained.height > 24


def test_every_sampled_token_was_trained_on_or_has_a_reason(run: Run) -> None:
    query = re.search(r'WHY = """(.*?)"""', READING.read_text(), re.DOTALL)
    assert query is not None
    why = run.sql(query[1])
    assert None not in why["why"].to_list()
    rows = run.trajectories.collect()
    assert why["sampled_tokens"].sum() == rows["action_mask"].list.sum().sum()
    assert why["episodes"].sum() == rows["episode_id"].n_unique()
    assert why.filter(why="trained")["episodes"].item() == 24


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_is_replayed_to_the_last_bit(run: Run, step: int) -> None:
    replayed = replay_step(run.uri, step)
    assert replayed.equal, replayed.difference


def test_what_a_restart_finds_counts_episodes(run: Run) -> None:
    found = recover(run)
    assert len(batch_of(run.batch(3)).trajectory_ids) == 8
    trained = set(run.batches.collect()["episode_id"])
    pending = {sample.trajectory_id for sample in found.control.pending}
    assert not pending & trained
    assert found.pending_rows is not None
    assert set(found.pending_rows["episode_id"].to_pylist()) == pending

"""Captured attempts are scored again: the logprobs of their tokens, and their reward."""

from dataclasses import replace

import polars as pl
import pytest

from rollart_flow.pipeline import Pipeline
from rollart_flow.replay.captured import score_attempt
from rollart_flow.replay.stored_attempts import read_attempt
from rollart_flow.runner.retrain import stored_pipeline
from rollart_flow.store import Run
from rollart_flow.types import Reason, Trajectory
from rollart_flow.types.trajectories import branch_id


@pytest.fixture(scope="module")
def pipeline(finished_run: Run) -> Pipeline:
    return stored_pipeline(finished_run)


@pytest.fixture(scope="module")
def attempt(finished_run: Run) -> list[Trajectory]:
    """A trained attempt, and a branch of it that adds nothing to train on."""
    scored = pl.col("reward").is_not_null(), pl.col("action_mask").list.any()
    found = finished_run.trajectories.filter(*scored).sort("seq").head(1).collect()
    (first,), _ = read_attempt(finished_run, found["trajectory_id"].item())
    second = replace(
        first,
        trajectory_id=branch_id(first.trajectory_id, 1),
        branch=1,
        parent=first.trajectory_id,
        shared_tokens=len(first.token_ids),
        reason=Reason.UNTRAINED_CALL,
        action_mask=(False,) * len(first.action_mask),
        turns=(),
    )
    return [first, second]


def test_recorded_logprobs_and_reward_are_found_again(
    finished_run: Run, pipeline: Pipeline, attempt: list[Trajectory]
) -> None:
    tokens, divergence = score_attempt(finished_run, pipeline, attempt)
    assert divergence is None
    assert tokens == sum(attempt[0].action_mask) > 0


def test_another_logprob_is_a_difference(
    finished_run: Run, pipeline: Pipeline, attempt: list[Trajectory]
) -> None:
    first = attempt[0]
    at = first.action_mask.index(True)
    logprobs = (*first.logprobs[:at], first.logprobs[at] - 0.5, *first.logprobs[at + 1 :])
    changed = [replace(first, logprobs=logprobs), attempt[1]]
    _, divergence = score_attempt(finished_run, pipeline, changed)
    assert divergence is not None
    assert divergence.startswith(f"{first.trajectory_id}, token {at}: logprob ")


def test_another_reward_is_a_difference(
    finished_run: Run, pipeline: Pipeline, attempt: list[Trajectory]
) -> None:
    changed = [replace(each, reward=17.0) for each in attempt]
    _, divergence = score_attempt(finished_run, pipeline, changed)
    assert divergence is not None
    assert divergence.startswith("final reward: 17.0 was recorded")

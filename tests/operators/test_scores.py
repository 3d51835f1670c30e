"""Metrics of an evaluation and their intervals."""

from dataclasses import replace
from itertools import combinations
from math import isclose
from statistics import fmean

import numpy as np
import pytest

from rollart_flow.operators.scores import (
    bootstrap,
    fraction_score,
    pass_at,
    sampled_scores,
    wilson,
)
from rollart_flow.types import Trajectory
from tests.builders import TRAJECTORY


def attempts(*solved: bool) -> list[Trajectory]:
    return [replace(TRAJECTORY, solved=each, reward=float(each)) for each in solved]


@pytest.mark.parametrize("solved", range(6))
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_solved_one(k: int, solved: int) -> None:
    outcomes = [True] * solved + [False] * (5 - solved)
    share = fmean(any(chosen) for chosen in combinations(outcomes, k))
    assert isclose(pass_at(k, 5, solved), share)


def test_samples_give_the_mean_and_pass_at_each_power_of_two() -> None:
    tasks = [attempts(True, False, False, False, False, False), attempts(*[True] * 6)]
    found = {score.metric: score for score in sampled_scores("success_sampled/held_out", tasks)}
    assert [name.removesuffix("/held_out") for name in found] == [
        "success_sampled", "pass@2", "pass@4", "pass@6", "reward_mean", "turns_mean",
    ]  # fmt: skip
    assert found["success_sampled/held_out"].value == pytest.approx((1 / 6 + 1) / 2)
    assert found["pass@2/held_out"].value == pytest.approx((1 / 3 + 1) / 2)
    assert found["pass@6/held_out"].value == 1.0


def test_one_attempt_at_each_task_has_no_pass_at_k() -> None:
    tasks = [attempts(True), attempts(False)]
    names = [score.metric for score in sampled_scores("success_sampled", tasks)]
    assert names == ["success_sampled", "reward_mean", "turns_mean"]


def test_wilson_s_interval_is_the_published_one() -> None:
    """Newcombe 1998, table I: 81 of 263, and 0 of 20."""
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0.0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert fraction_score("success", [attempts(False)] * 20).interval == wilson(0.0, 20)


def test_the_bootstrap_is_over_tasks_and_always_the_same() -> None:
    generator = np.random.default_rng(7)
    values = generator.random(400).tolist()
    interval = bootstrap(values)
    assert interval is not None
    assert interval == bootstrap(values)
    error = float(np.std(values) / 20)
    assert interval == pytest.approx(
        (fmean(values) - 1.96 * error, fmean(values) + 1.96 * error), abs=0.15 * error
    )
    assert bootstrap([0.5]) is None


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """300 evaluations of tasks of different difficulty, attempted four times; within 4 sigma."""
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        chances = generator.beta(1, 1, 60)
        solved = generator.random((60, 4)) < chances[:, None]
        interval = bootstrap(solved.mean(axis=1).tolist())
        assert interval is not None
        covered += interval[0] <= 0.5 <= interval[1]
    assert covered / 300 > 0.95 - 4 * 0.0126


def test_tasks_that_agree_leave_a_doubt() -> None:
    score = fraction_score("success_sampled", [attempts(True, True)] * 10)
    assert score.value == 1.0
    assert score.interval == wilson(1.0, 10)
    assert score.interval is not None
    assert score.interval[0] < 0.75

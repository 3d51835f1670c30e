"""Composed rewards: every cap holds, the outcome dominates, and each part is stored."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.errors import SettingsError
from rollart_flow.rewards.base import environment_reward
from rollart_flow.rewards.composition import Composition, Part, compose
from rollart_flow.rewards.majority import majority
from rollart_flow.rewards.rules import exact, regex
from rollart_flow.rewards.score import score
from rollart_flow.types import Reason, Trajectory
from tests.builders import answered
from tests.rewards import functions

RIGHT, WRONG = answered("right"), answered("wrong")


@dataclass(frozen=True, slots=True)
class Fixed:
    """A reward of one value, whatever the trajectory."""

    value: float

    def __call__(self, trajectory: Trajectory) -> float:
        return self.value


def composed(reward: Composition, trajectory: Trajectory) -> tuple[float, Mapping[str, float]]:
    """Reward and parts, without processes."""
    return cast(tuple[float, Mapping[str, float]], asyncio.run(reward(trajectory)))


values = st.floats(-1e9, 1e9)
parts = st.tuples(
    values,
    values.filter(bool),
    st.floats(0, 10, exclude_min=True),
)


@given(
    st.lists(parts, max_size=4),
    st.lists(values, min_size=4, max_size=4),
    st.floats(0, 0.5, exclude_max=True),
)
def test_a_right_trajectory_has_more_than_a_wrong_one_whatever_the_process_says(
    drawn: list[tuple[float, float, float]], others: list[float], total_cap: float
) -> None:
    def reward(given_values: list[float]) -> Composition:
        named = [
            Part(f"p{i}", Fixed(value), weight, cap)
            for i, (value, (_, weight, cap)) in enumerate(zip(given_values, drawn, strict=False))
        ]
        return compose(exact("right"), *named, total_cap=total_cap)

    best, stored = composed(reward([value for value, _, _ in drawn]), RIGHT)
    worst, _ = composed(reward(others), WRONG)
    assert best > worst
    assert abs(stored["process"]) <= total_cap
    for index, (_, _, cap) in enumerate(drawn):
        assert abs(stored[f"p{index}"]) <= cap
    assert best == stored["outcome"] + stored["process"]


def test_each_part_is_stored_with_what_it_adds() -> None:
    reward = compose(
        exact("right"),
        Part("polite", Fixed(3.0), weight=0.02, cap=0.1),
        Part("long", Fixed(5.0), weight=-1, cap=0.2),
        Part("check", majority(exact("right"), 3), cap=0.05),
        total_cap=0.1,
    )
    total, stored = composed(reward, RIGHT)
    assert total == pytest.approx(0.91)
    assert stored == {
        "outcome": 1.0,
        "polite": pytest.approx(0.06),
        "long": -0.2,
        "check": 0.05,
        "check.passed": 2.0,
        "check.failed": 0.0,
        "process": pytest.approx(-0.09),
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compose(exact("a"), total_cap=0.5), "give from 0 to less than 0.5"),
        (lambda: compose(exact("a"), total_cap=float("nan")), "total_cap is nan"),
        (lambda: compose(exact("a"), total_cap=-0.1), "total_cap is -0.1"),
        (lambda: compose(exact("a"), gap=0.0), "gap is 0.0"),
        (lambda: compose(exact("a"), Part("outcome", exact("a"))), "'outcome' is taken"),
        (lambda: compose(exact("a"), *[Part("b", exact("a"))] * 2), "'b' is there twice"),
        (lambda: Part("", exact("a")), "a part has no name"),
        (lambda: Part("b", exact("a"), weight=0), "weight of 'b' is 0"),
        (lambda: Part("b", exact("a"), cap=0), "cap of 'b' is 0"),
        (lambda: majority(exact("a"), 2), "k is 2; give an odd number"),
        (lambda: majority(exact("a"), -1), "k is -1"),
    ],
)
def test_a_wrong_setting_is_refused_at_once(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        make()
    assert message in str(raised.value)


def test_plain_parts_run_in_processes_and_async_ones_in_the_loop() -> None:
    reward = compose(
        functions.pid,
        Part("here", functions.in_the_loop, weight=1e-9),
        Part("there", majority(functions.pid, 1, threshold=os.getpid() + 0.5), cap=0.1),
        Part("environment", environment_reward),
    )
    result = asyncio.run(score(RIGHT, reward))
    assert result.error is None
    assert result.reward_parts is not None
    assert result.reward_parts["outcome"] != os.getpid()
    assert result.reward_parts["here"] == pytest.approx(os.getpid() * 1e-9)


def test_a_plain_part_that_hangs_is_killed_at_the_timeout() -> None:
    reward = compose(exact("right"), Part("slow", regex(r"(a+)+$b")))
    result = asyncio.run(score(answered("a" * 64), reward, timeout_s=1.0))
    assert result.reason is Reason.REWARD_TIMEOUT


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (functions.raises, "part 'bad': KeyError: 'gold answer'"),
        (functions.raises_in_the_loop, "part 'bad': the judge is not at home"),
        (functions.nan, "part 'bad': returned nan; it must be a finite number"),
        (functions.infinite_in_the_loop, "part 'bad': returned inf"),
        (functions.text, "part 'bad': TypeError: returned str as reward"),
    ],
)
def test_a_part_that_fails_is_named(part: Callable[[Trajectory], float], message: str) -> None:
    result = asyncio.run(score(RIGHT, compose(exact("right"), Part("bad", part))))
    assert result.reason is Reason.REWARD_ERROR
    assert message in (result.error or "")

"""A majority of flaky checks: what all runs would say, with no run more than it takes."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.rewards.majority import majority
from rollart_flow.rewards.score import score
from rollart_flow.types import Reason, Trajectory
from tests.builders import answered
from tests.rewards import functions


def voted(outcomes: Sequence[bool]) -> tuple[float, dict[str, int], int]:
    """Reward, votes and number of runs of a check that has these outcomes in turn."""
    left = list(outcomes)

    def check(trajectory: Trajectory) -> float:
        return float(left.pop(0))

    reward = asyncio.run(majority(check, len(outcomes))(answered("a")))
    value, votes = cast(tuple[float, dict[str, int]], reward)
    return value, votes, len(outcomes) - len(left)


@given(
    st.integers(0, 4).flatmap(
        lambda n: st.lists(st.booleans(), min_size=2 * n + 1, max_size=2 * n + 1)
    )
)
def test_it_is_what_most_of_all_runs_say(outcomes: list[bool]) -> None:
    value, votes, runs = voted(outcomes)
    assert value == float(sum(outcomes) > len(outcomes) / 2)
    assert sum(votes.values()) == runs


@pytest.mark.parametrize(
    ("outcomes", "runs"),
    [
        ([True] * 5, 3),
        ([False] * 5, 3),
        ([True, False, True, True, True], 4),
        ([True, False, True, False, True], 5),
        ([True], 1),
    ],
)
def test_it_stops_once_nothing_can_change(outcomes: list[bool], runs: int) -> None:
    assert voted(outcomes)[2] == runs


def test_a_run_that_raises_is_no_vote() -> None:
    result = asyncio.run(score(answered("a"), majority(functions.raises, 3)))
    assert result.reason is Reason.REWARD_ERROR
    assert result.error == "reward function Majority: KeyError: 'gold answer'"

    result = asyncio.run(score(answered("a"), majority(functions.nan, 3)))
    assert "majority: returned nan; it must be a finite number" in (result.error or "")


def test_the_votes_are_the_parts_of_the_reward() -> None:
    result = asyncio.run(score(answered("a"), majority(functions.turns, 3, threshold=1.0)))
    assert (result.reward, result.reward_parts) == (1.0, {"passed": 2.0, "failed": 0.0})

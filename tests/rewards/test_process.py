"""Rewards for the time of an attempt, and for the calls of a captured agent."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.errors import RewardFailedError, SettingsError
from rollart_flow.rewards import Part, completion_time, compose, environment_reward, process_reward
from rollart_flow.rewards.process import attempt_s
from rollart_flow.rewards.score import score
from rollart_flow.types import Outcome, Reason
from rollart_flow.types.exchanges import StoredExchange
from tests.builders import MOMENT, exchange, trajectory


def call(number: int, arrived: float, generating: float | None, ended: float) -> StoredExchange:
    """A call with these times [s]."""
    began = None if generating is None else MOMENT + timedelta(seconds=generating)
    return exchange(
        number,
        arrived_at=MOMENT + timedelta(seconds=arrived),
        generating_at=began,
        ended_at=MOMENT + timedelta(seconds=ended),
    )


def test_an_attempt_of_an_environment_takes_from_its_start_to_its_end() -> None:
    row = trajectory(finished_at=MOMENT + timedelta(seconds=3))
    assert attempt_s(row) == 3.0
    assert completion_time(12)(row) == (0.75, {"seconds": 3.0})
    assert completion_time(2)(row) == (0.0, {"seconds": 3.0})


@pytest.mark.parametrize(
    ("calls", "seconds"),
    [
        ([(0, 0, 1)], 1),
        ([(0, 0, 1), (5, 5, 6)], 6),  # the tools' time is the agent's
        ([(0, 0.5, 1), (5, 5.25, 6)], 5.25),  # the engine's queue is not
        ([(0, 0, 4), (1, 3, 4)], 4),  # one waits while the other is generated
        ([(0, 2, 3), (1, 2, 4)], 2),  # both wait at once
        ([(0, 0, 1), (2, None, 2)], 2),  # a refused call
    ],
)
def test_the_time_of_an_agent_has_no_time_of_the_engines_queue(
    calls: list[tuple[float, float | None, float]], seconds: float
) -> None:
    made = tuple(call(number, *times) for number, times in enumerate(calls))
    assert attempt_s(trajectory(exchanges=made)) == pytest.approx(seconds)


def test_giving_up_fast_is_no_merit() -> None:
    row = trajectory(solved=False, finished_at=MOMENT + timedelta(seconds=1))
    assert completion_time(2)(row) == (0.0, {"seconds": 1.0})
    assert completion_time(2, solved_only=False)(row) == (0.5, {"seconds": 1.0})


def short(call: StoredExchange) -> float:
    """0.05 for a call of at most a second, a penalty for a refused one."""
    return -1.0 if call.refusal else 0.05 * (call.call_s <= 1)


def fails(call: StoredExchange) -> float:
    raise KeyError("no such tool")


def test_calls_are_capped_one_by_one_and_together() -> None:
    calls = tuple(map(exchange, range(4)))
    refused = replace(calls[3], refusal="overflow")
    assert process_reward(short)(trajectory(exchanges=calls)) == (
        0.2, {"calls": 4.0, "uncapped": 0.2},
    )  # fmt: skip
    rewarded, parts = process_reward(short)(trajectory(exchanges=(*calls[:3], refused)))  # type: ignore[misc]
    assert (rewarded, parts["calls"]) == (pytest.approx(0.05), 4.0)
    capped = process_reward(short, cap=0.1)(trajectory(exchanges=calls))
    assert capped == (0.1, {"calls": 4.0, "uncapped": 0.2})
    assert process_reward(short)(trajectory(exchanges=())) == (0.0, {"calls": 0.0, "uncapped": 0.0})


class Table:
    """Values of calls by their number."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __call__(self, call: StoredExchange) -> float:
        return self.values[call.number]


@given(
    st.lists(st.floats(-1e300, 1e300), max_size=20),
    st.floats(0.001, 10),
    st.floats(0.001, 10),
)
def test_no_values_exceed_the_caps(values: list[float], cap: float, each: float) -> None:
    calls = tuple(map(exchange, range(len(values))))
    rewarded, parts = process_reward(Table(values), cap=cap, each=each)(  # type: ignore[misc]
        trajectory(exchanges=calls)
    )
    assert abs(rewarded) <= cap
    assert abs(parts["uncapped"]) <= each * len(values) * (1 + 1e-12)


def test_a_value_that_fails_names_its_call() -> None:
    row = trajectory(exchanges=(exchange(0),))
    with pytest.raises(RewardFailedError, match="call 0: 'no such tool'"):
        process_reward(fails)(row)
    with pytest.raises(RewardFailedError, match="call 0: returned nan; it must be a finite"):
        process_reward(Table([float("nan")]))(row)
    with pytest.raises(RewardFailedError, match="g-00 has no calls; it is for attempts of capt"):
        process_reward(short)(trajectory())


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SettingsError, match="budget_s is 0; give seconds above 0"):
        completion_time(0)
    with pytest.raises(SettingsError, match="cap is -1; give a number above 0"):
        process_reward(short, cap=-1)
    with pytest.raises(SettingsError, match="each is inf; give a number above 0"):
        process_reward(short, each=float("inf"))


def test_they_are_parts_of_an_outcome_and_see_the_calls_in_their_own_process() -> None:
    fn = compose(
        environment_reward,
        Part("time", completion_time(8), weight=0.1),
        Part("calls", process_reward(short)),
    )
    calls = tuple(map(exchange, range(2)))
    row = trajectory(reward=1.0, exchanges=calls, outcome=Outcome.COMPLETED)
    scored = asyncio.run(score(replace(row, reward=None, scored_at=None), fn))
    assert (scored.outcome, scored.reason, scored.exchanges) == (Outcome.COMPLETED, None, calls)
    assert scored.reward_parts is not None
    assert scored.reward_parts["calls.calls"] == 2.0
    assert scored.reward_parts["calls"] == pytest.approx(0.1)
    assert scored.reward_parts["time.seconds"] == 1.5
    failed = asyncio.run(score(replace(row, reward=None, exchanges=None), fn))
    assert (failed.outcome, failed.reason) == (Outcome.FAILED, Reason.REWARD_ERROR)

"""The contract: everything arrives as it was sent, and nothing else passes."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.errors import ContractError
from rollart_flow.serverless.contract import (
    SCHEMA_VERSION,
    Answer,
    Call,
    Failure,
    decode,
    encode,
    encode_call,
)
from rollart_flow.types import Trajectory
from tests.serverless.trajectories import NOW, TRAJECTORY

MESSAGE = decode(encode_call(TRAJECTORY, NOW)[1])


def there(trajectory: Trajectory, deadline: datetime = NOW) -> Call:
    return Call.from_json(decode(encode_call(trajectory, deadline)[1]))


def request_id(trajectory: Trajectory) -> str:
    return encode_call(trajectory, NOW)[0]


def test_a_trajectory_arrives_as_it_was_sent() -> None:
    assert there(TRAJECTORY) == Call(request_id(TRAJECTORY), NOW, TRAJECTORY)
    scored = replace(TRAJECTORY, reward=0.5, reward_parts={"a": 1.0}, scored_at=NOW, error="é")
    assert there(scored).trajectory == scored


def test_a_call_is_plain_json_with_a_version_and_iso_times() -> None:
    message = json.loads(encode_call(TRAJECTORY, NOW)[1])
    assert message["schema_version"] == SCHEMA_VERSION
    assert message["deadline"] == "2025-01-01T12:30:00.123456+00:00"
    assert message["trajectory"]["created_at"] == "2025-01-01T12:30:00.123456+00:00"
    assert message["trajectory"]["turns"][0]["action"] == "2"


@given(
    reward=st.floats(allow_nan=False),
    parts=st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False)),
)
def test_an_answer_arrives_as_it_was_sent(reward: float, parts: dict[str, float] | None) -> None:
    answer = Answer("id", reward, parts)
    assert Answer.from_json(decode(encode(answer.as_json()))) == answer


@pytest.mark.parametrize("failure", Failure)
def test_a_failure_arrives_with_its_error(failure: Failure) -> None:
    answer = Answer("id", failure=failure, error="KeyError: 'gold'")
    assert Answer.from_json(decode(encode(answer.as_json()))) == answer


def test_the_request_id_is_a_function_of_the_trajectory() -> None:
    assert request_id(TRAJECTORY) == request_id(replace(TRAJECTORY))
    assert request_id(TRAJECTORY) != request_id(replace(TRAJECTORY, token_ids=(1, 2, 4)))
    elsewhere = NOW.astimezone(timezone(timedelta(0)))
    assert request_id(TRAJECTORY) == request_id(replace(TRAJECTORY, created_at=elsewhere))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>not found</html>", "is no message of the reward contract; is this the address"),
        (b"[1]", "is no message"),
        (b"[" * 100_000, "is no message"),
        (b"{}", "schema_version None, this side speaks 1; install the same"),
        (b'{"schema_version": 2}', "schema_version 2, this side speaks 1"),
    ],
)
def test_what_is_no_message_of_this_version_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        decode(body)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in MESSAGE.items() if key != name}


def with_trajectory(**changes: Any) -> dict[str, Any]:
    return {**MESSAGE, "trajectory": {**MESSAGE["trajectory"], **changes}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (without("request_id"), "no field 'request_id'"),
        (without("trajectory"), "no field 'trajectory'"),
        ({**MESSAGE, "deadline": "soon"}, "soon"),
        ({**MESSAGE, "deadline": "2025-01-01T00:00:00"}, "no offset from UTC"),
        ({**MESSAGE, "request_id": 3}, "3 should be text"),
        (with_trajectory(outcome="solved"), "'solved' is not a valid Outcome"),
        (with_trajectory(turns=[{"start": 0}]), "missing"),
        (with_trajectory(created_at=None, token_ids=5), "not iterable"),
        ({**MESSAGE, "trajectory": []}, "list indices"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(message: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=f"a call is malformed: .*{said}"):
        Call.from_json(message)


@pytest.mark.parametrize(
    "changes",
    [{"reward": None}, {"reward": "high"}, {"failure": "bad"}, {"parts": [1.0]}],
)
def test_a_malformed_answer_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="an answer is malformed"):
        Answer.from_json({**Answer("id", 1.0).as_json(), **changes})


def test_a_trajectory_with_a_number_that_json_has_not_is_refused() -> None:
    with pytest.raises(ContractError, match="cannot be sent as JSON"):
        request_id(replace(TRAJECTORY, logprobs=(0.0, float("-inf"), 0.0)))


def test_a_deadline_keeps_its_moment_in_another_time_zone() -> None:
    east = NOW.astimezone(timezone(timedelta(hours=8)))
    assert there(TRAJECTORY, east).deadline == NOW

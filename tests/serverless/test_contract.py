"""The contract: everything arrives as it was sent, and nothing else passes."""

import json
import math
from dataclasses import fields, replace
from datetime import timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_flow.errors import ContractError
from rollart_flow.serverless.contract import (
    SCHEMA_VERSION,
    Answer,
    CallFailure,
    RewardCall,
    decode,
    decode_call,
    encode,
    encode_call,
)
from rollart_flow.types import Trajectory, Turn
from tests.builders import MOMENT, TRAJECTORY, exchange

LIMIT_S = 7.5
MESSAGE = decode(encode_call(TRAJECTORY, LIMIT_S)[1])


def there(trajectory: Trajectory) -> RewardCall:
    call = decode_call(encode_call(trajectory, LIMIT_S)[1])
    assert call is not None
    return call


def request_id(trajectory: Trajectory) -> str:
    return encode_call(trajectory, LIMIT_S)[0]


def test_a_trajectory_arrives_as_it_was_sent() -> None:
    assert there(TRAJECTORY) == RewardCall(request_id(TRAJECTORY), LIMIT_S, TRAJECTORY)
    scored = replace(TRAJECTORY, reward=0.5, reward_parts={"a": 1.0}, scored_at=MOMENT, error="é")
    assert there(scored).trajectory == scored
    called = replace(TRAJECTORY, exchanges=(exchange(0), exchange(1, prompt_ids=(1, 2))))
    assert there(called).trajectory == called


def test_a_call_is_plain_json_with_a_version_and_times_with_an_offset() -> None:
    message = json.loads(encode_call(TRAJECTORY, LIMIT_S)[1])
    assert message["schema_version"] == SCHEMA_VERSION
    assert message["limit_s"] == LIMIT_S
    assert message["trajectory"]["created_at"] == "2025-01-02T03:04:05.678901Z"
    assert message["trajectory"]["turns"][0]["action"] == "do\nit"


@given(
    reward=st.floats(allow_nan=False),
    parts=st.none() | st.dictionaries(st.text(), st.floats(allow_nan=False)),
)
def test_an_answer_arrives_as_it_was_sent(reward: float, parts: dict[str, float] | None) -> None:
    answer = Answer("id", reward, parts)
    assert Answer.from_json(decode(encode(answer.as_json()))) == answer


@pytest.mark.parametrize("failure", CallFailure)
def test_a_failure_arrives_with_its_error(failure: CallFailure) -> None:
    answer = Answer("id", failure=failure, error="KeyError: 'gold'")
    assert Answer.from_json(decode(encode(answer.as_json()))) == answer


def test_the_request_id_is_a_function_of_the_trajectory() -> None:
    assert request_id(TRAJECTORY) == request_id(replace(TRAJECTORY))
    assert request_id(TRAJECTORY) != request_id(replace(TRAJECTORY, token_ids=(1, 2, 4)))
    elsewhere = MOMENT.astimezone(timezone(timedelta(0)))
    assert request_id(TRAJECTORY) == request_id(replace(TRAJECTORY, created_at=elsewhere))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>not found</html>", "is no message of the reward contract; is this the address"),
        (b"[1]", "is no message"),
        (b"[" * 100_000, "is no message"),
        (b"{}", "schema_version None, this side speaks 3; install the same"),
        (b'{"schema_version": 1}', "schema_version 1, this side speaks 3"),
    ],
)
def test_what_is_no_message_of_this_version_is_refused(body: bytes, message: str) -> None:
    for read in (decode, decode_call):
        with pytest.raises(ContractError, match=message):
            read(body)


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in MESSAGE.items() if key != name}


def with_trajectory(**changes: Any) -> dict[str, Any]:
    return {**MESSAGE, "trajectory": {**MESSAGE["trajectory"], **changes}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (without("request_id"), "missing required field `request_id`"),
        (without("trajectory"), "missing required field `trajectory`"),
        ({**MESSAGE, "limit_s": "soon"}, r"`float`, got `str` - at `\$.limit_s`"),
        ({**MESSAGE, "request_id": 3}, r"`str`, got `int` - at `\$.request_id`"),
        (with_trajectory(outcome="solved"), "'solved' - at .*outcome`"),
        (with_trajectory(turns=[{"start": 0}]), r"missing .*turns\[0\]`"),
        (with_trajectory(token_ids=5), "`array`, got `int` - at .*token_ids`"),
        (with_trajectory(created_at="2025-01-01T00:00:00"), "no offset from UTC"),
        ({**MESSAGE, "trajectory": []}, "`object`, got `array`"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(message: dict[str, Any], said: str) -> None:
    with pytest.raises(ContractError, match=f"a call is malformed: .*{said}"):
        decode_call(encode(message))


@pytest.mark.parametrize(
    "changes",
    [{"reward": None}, {"reward": "high"}, {"failure": "bad"}, {"parts": [1.0]}],
)
def test_a_malformed_answer_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ContractError, match="an answer is malformed"):
        Answer.from_json({**Answer("id", 1.0).as_json(), **changes})


def with_number(kind: type, name: str, number: float) -> Trajectory:
    """A trajectory with a number in a field of its own or of its turn."""
    several: Any = {"logprobs": (0.0, number, 0.0), "reward_parts": {"a": number}}
    change: Any = {name: several.get(name, number)}
    if kind is Turn:
        return replace(TRAJECTORY, turns=(replace(TRAJECTORY.turns[0], **change),))
    return replace(TRAJECTORY, **change)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, field.name)
        for kind in (Trajectory, Turn)
        for field in fields(kind)
        if "float" in str(field.type)
    ],
)
def test_a_trajectory_with_a_number_that_json_has_not_is_refused(
    kind: type, name: str, number: float
) -> None:
    with pytest.raises(ContractError, match="trajectory t cannot be sent as JSON"):
        request_id(with_number(kind, name, number))


def test_half_a_character_is_refused_in_a_trajectory_and_replaced_in_an_answer() -> None:
    with pytest.raises(ContractError, match=r"cannot be sent as JSON: .*surrogates"):
        request_id(replace(TRAJECTORY, error="\udcff"))
    for answer in (
        Answer("id", 1.0, {"\udcff": 1.0}),
        Answer("id", failure=CallFailure.FUNCTION, error="\udcff"),
    ):
        sent = decode(encode(answer.as_json()))
        assert "\ufffd" in (sent["error"] or sent["parts"])

"""The one contract of all reward endpoints: a trajectory in, reward and parts out, as plain JSON.

    call    {"schema_version", "request_id", "deadline", "trajectory"}
    answer  {"schema_version", "request_id", "reward", "parts", "failure", "error"}
    warm    {"schema_version", "warm": true}; answered alike

Times are RFC 3339 with an offset; numbers of an answer that are not finite travel as text, so
that every message is strict JSON. The request id is a function of the trajectory alone, so that a
call may be repeated by whoever lost its answer (ROLLART 5.1: a reward worker is a pure function).

Invariant: what is decoded here is a whole message of this version, or a `ContractError`.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from rollart_flow.errors import ContractError
from rollart_flow.types import Trajectory

SCHEMA_VERSION: Literal[2] = 2
"""Of calls and answers; the two sides must have the same."""

WARM = {"schema_version": SCHEMA_VERSION, "warm": True}
"""Asks an endpoint for nothing but to be there."""

_SHOWN_CHARACTERS = 80


class CallFailure(StrEnum):
    """Why an answer has no reward. None of these becomes better by asking again."""

    FUNCTION = "function"
    """The reward function raised or returned no score."""
    NOT_FINITE = "not_finite"
    """It returned a number that is NaN or infinite."""
    LATE = "late"
    """The deadline passed."""
    REFUSED = "refused"
    """The call was not of the contract."""


@dataclass(frozen=True, slots=True)
class RewardCall:
    """One trajectory to score, as it arrives; `encode_call` sends it."""

    request_id: str
    deadline: datetime
    """When the answer is of no more use; the clocks of both sides must roughly agree."""
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a call: a reward, or a failure and the error in one line."""

    request_id: str
    reward: float | None = None
    parts: Mapping[str, float] | None = None
    failure: CallFailure | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The message, for `encode`."""
        parts = self.parts
        return {
            "schema_version": SCHEMA_VERSION,
            "request_id": self.request_id,
            "reward": None if self.reward is None else _number_out(self.reward),
            "parts": None
            if parts is None
            else {_text_out(k): _number_out(v) for k, v in parts.items()},
            "failure": self.failure,
            "error": None if self.error is None else _text_out(self.error),
        }

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> "Answer":
        """The answer that a message is.

        Raises:
            ContractError: a field is missing or of a wrong kind, or neither reward nor failure.
        """
        try:
            reward, parts, failure = message["reward"], message["parts"], message["failure"]
            answer = cls(
                request_id=_text(message["request_id"]),
                reward=None if reward is None else float(reward),
                parts=None if parts is None else {k: float(v) for k, v in parts.items()},
                failure=None if failure is None else CallFailure(failure),
                error=message["error"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"an answer is malformed: {_said(error)}") from error
        if (answer.reward is None) == (answer.failure is None):
            raise ContractError("an answer is malformed: it has a reward or a failure, one of them")
        return answer


class _Message(msgspec.Struct):
    """A call as it travels."""

    schema_version: Literal[2]
    request_id: str
    deadline: Annotated[datetime, msgspec.Meta(tz=True)]
    trajectory: Trajectory


_CALLS = msgspec.json.Decoder(_Message)


def encode_call(trajectory: Trajectory, deadline: datetime) -> tuple[str, bytes]:
    """(request id, the call as bytes). The id is the same for the same trajectory, always.

    The trajectory, which is nearly all of it, is encoded once.

    Raises:
        ContractError: the trajectory holds a number that is not finite, or a text that is no
            Unicode.
    """
    if not math.isfinite(_total(trajectory)):
        raise ContractError(
            f"trajectory {trajectory.trajectory_id} cannot be sent as JSON: a number of it is NaN "
            "or infinite"
        )
    try:
        body = encode(trajectory)
    except UnicodeEncodeError as error:
        raise ContractError(
            f"trajectory {trajectory.trajectory_id} cannot be sent as JSON: {error}"
        ) from error
    request_id = f"{trajectory.trajectory_id}:{hashlib.sha256(body).hexdigest()[:24]}"
    head = {
        "schema_version": SCHEMA_VERSION,
        "request_id": request_id,
        "deadline": deadline,
        "trajectory": msgspec.Raw(body),
    }
    return request_id, encode(head)


def decode_call(body: bytes) -> RewardCall | None:
    """The call that a message is; None where it asks for nothing, as `WARM` does.

    Raises:
        ContractError: it is no message, of another version, or a field is missing or of a wrong
            kind.
    """
    try:
        return _call(_CALLS.decode(body))
    except (msgspec.MsgspecError, RecursionError) as error:
        if decode(body) == WARM:
            return None
        raise ContractError(f"a call is malformed: {error}") from error


def request_id_of(body: bytes) -> str:
    """The request id of a message that may be none; empty where there is none."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return str(said.get("request_id", "")) if isinstance(said, dict) else ""


def encode(message: Any) -> bytes:
    """A message as JSON; its numbers are finite."""
    return msgspec.json.encode(message)


def decode(body: bytes) -> dict[str, Any]:
    """A message of this version.

    Raises:
        ContractError: no JSON object, or of another version.
    """
    try:
        message = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ContractError(
            f"{body[:_SHOWN_CHARACTERS]!r} is no message of the reward contract; "
            "is this the address of a rollart reward endpoint?"
        )
    return check_version(message)


def check_version(message: dict[str, Any]) -> dict[str, Any]:
    """The message itself.

    Raises:
        ContractError: it is of another version.
    """
    version = message.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ContractError(
            f"a message has schema_version {version!r}, this side speaks {SCHEMA_VERSION}; "
            "install the same rollart-flow on both sides"
        )
    return message


def _call(message: _Message) -> RewardCall:
    trajectory = message.trajectory
    for time in (trajectory.created_at, trajectory.finished_at, trajectory.scored_at):
        if time is not None and time.tzinfo is None:
            raise msgspec.ValidationError(f"the time {time} has no offset from UTC")
    return RewardCall(message.request_id, message.deadline, trajectory)


def _total(trajectory: Trajectory) -> float:
    """The sum of all numbers that may be infinite or NaN: it is, where one of them is."""
    sampling, parts = trajectory.sampling, trajectory.reward_parts or {}
    turns = (turn.reward + turn.generate_s + turn.step_s for turn in trajectory.turns)
    alone = (trajectory.reset_s, trajectory.reward or 0.0, sampling.temperature, sampling.top_p)
    return sum(trajectory.logprobs) + sum(turns) + sum(parts.values()) + sum(alone)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} should be text")
    return value


def _text_out(value: str) -> str:
    """Without the halves of characters that an undecodable file name or output leaves."""
    return value.encode("utf-8", "replace").decode()


def _number_out(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    return " ".join(str(error).split())

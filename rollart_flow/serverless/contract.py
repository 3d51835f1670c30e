"""The message contract of all reward endpoints: plain JSON with a trajectory in, reward and parts
out.

    call    {"schema_version", "request_id", "limit_s", "trajectory"}
    answer  {"schema_version", "request_id", "reward", "parts", "verdicts", "failure", "error"}
    warm    {"schema_version", "warm": true}; the answer is the same

An answer without verdicts lacks that field. Times are RFC 3339 with an offset; non-finite numbers
of an answer are encoded as text, so that every message is strict JSON. The request id is a function
of the trajectory alone, so that a caller may repeat a call whose answer was lost (ROLLART section
5.1: a reward worker is a pure function).

Invariant: decoding returns a whole message of this version or raises `ContractError`.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal

import msgspec

from rollart_flow.errors import ContractError
from rollart_flow.text import one_line, storable
from rollart_flow.types import Trajectory
from rollart_flow.types.verdicts import Verdict

SCHEMA_VERSION: Literal[3] = 3
"""Version of calls and answers; both sides must have the same."""

WARM = {"schema_version": SCHEMA_VERSION, "warm": True}
"""Message that only asks an endpoint to be ready."""

_SHOWN_CHARACTERS = 80


class CallFailure(StrEnum):
    """The reason why an answer has no reward. Repeating the call does not help."""

    FUNCTION = "function"
    """The reward function raised or returned no score."""
    NOT_FINITE = "not_finite"
    """The reward function returned a number that is NaN or infinite."""
    LATE = "late"
    """The time limit passed."""
    REFUSED = "refused"
    """The call did not conform to the contract."""


@dataclass(frozen=True, slots=True)
class RewardCall:
    """One received trajectory to score; `encode_call` sends it."""

    request_id: str
    limit_s: float
    """Seconds from the receipt after which the answer is useless, whatever the clocks say."""
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a call: a reward, or a failure with a one-line error."""

    request_id: str
    reward: float | None = None
    parts: Mapping[str, float] | None = None
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts of the function; a message without this field has none."""
    failure: CallFailure | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        parts = self.parts
        verdicts = [verdict.as_json() for verdict in self.verdicts]
        return {
            "schema_version": SCHEMA_VERSION,
            "request_id": self.request_id,
            "reward": None if self.reward is None else _number_out(self.reward),
            "parts": parts and {storable(k): _number_out(v) for k, v in parts.items()},
            **({"verdicts": verdicts} if verdicts else {}),
            "failure": self.failure,
            "error": self.error and one_line(self.error),
        }

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> "Answer":
        """Parse an answer.

        Raises ContractError unless every field has its type, and there is a reward or a failure.
        """
        try:
            if missing := {field.name for field in fields(cls)} - {"verdicts"} - message.keys():
                raise msgspec.ValidationError(f"it has no field {min(missing)!r}")
            answer = msgspec.convert(message, cls, strict=False)  # numbers may be text
        except msgspec.ValidationError as error:
            raise ContractError(f"an answer is malformed: {error}") from error
        if (answer.reward is None) == (answer.failure is None):
            raise ContractError("an answer is malformed: it has a reward or a failure, one of them")
        return answer


class _Message(msgspec.Struct):
    """The encoded form of a call."""

    schema_version: Literal[3]
    request_id: str
    limit_s: float
    trajectory: Trajectory


_CALLS = msgspec.json.Decoder(_Message)


def encode_call(trajectory: Trajectory, limit_s: float) -> tuple[str, bytes]:
    """Return (request id, the call as bytes). Equal trajectories always have the same id.

    The trajectory, which is most of the message, is encoded once. Raises ContractError if it holds
    a non-finite number, or text that is not valid Unicode.
    """
    cannot = f"trajectory {trajectory.trajectory_id} cannot be sent as JSON:"
    if not math.isfinite(_total(trajectory)):
        raise ContractError(f"{cannot} a number of it is NaN or infinite")
    try:
        body = encode(trajectory)
    except UnicodeEncodeError as error:
        raise ContractError(f"{cannot} {error}") from error
    request_id = f"{trajectory.trajectory_id}:{hashlib.sha256(body).hexdigest()[:24]}"
    head = {"schema_version": SCHEMA_VERSION, "request_id": request_id, "limit_s": limit_s}
    return request_id, encode(head | {"trajectory": msgspec.Raw(body)})


def decode_call(body: bytes) -> RewardCall | None:
    """Decode a call; None if the message is `WARM`, which requests no evaluation.

    Raises ContractError if the bytes are no call of this version with all fields.
    """
    try:
        return _call(_CALLS.decode(body))
    except (msgspec.MsgspecError, RecursionError) as error:
        if decode(body) == WARM:
            return None
        raise ContractError(f"a call is malformed: {error}") from error


def request_id_of(body: bytes) -> str:
    """Return the request id of a possibly invalid message; empty if there is none."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    return str(said.get("request_id", "")) if isinstance(said, dict) else ""


def encode(message: Any) -> bytes:
    """Encode a message as JSON; its numbers must be finite."""
    return msgspec.json.encode(message)


def decode(body: bytes) -> dict[str, Any]:
    """Decode a message; ContractError if it is no JSON object, or of another version."""
    try:
        message = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ContractError(
            f"{body[:_SHOWN_CHARACTERS]!r} is no message of the reward contract; "
            "is this the address of a rollart reward endpoint?"
        )
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
    return RewardCall(message.request_id, message.limit_s, trajectory)


def _total(trajectory: Trajectory) -> float:
    """Return the sum of all numbers, which is non-finite if one of them is."""
    sampling, parts = trajectory.sampling, trajectory.reward_parts or {}
    turns = (turn.reward + turn.generate_s + turn.step_s for turn in trajectory.turns)
    alone = (trajectory.reset_s, trajectory.reward or 0.0, sampling.temperature, sampling.top_p)
    return sum(trajectory.logprobs) + sum(turns) + sum(parts.values()) + sum(alone)


def _number_out(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)

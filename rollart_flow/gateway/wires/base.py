"""The base class of wires, which translate between a provider's JSON and the gateway's core.

To add a wire: its module with an instance, and its name in `gateway.wires.registry.WIRES`. A
package adds one through an entry point of the group `rollart_flow.wires`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rollart_flow.gateway.core.calls import (
    AnswerEnd,
    CallRefusedError,
    ModelAnswer,
    ModelCall,
    Refusal,
)
from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.events import json_bytes
from rollart_flow.gateway.wires.known_bodies import KnownBodies
from rollart_flow.gateway.wires.reading import refuse
from rollart_flow.text import one_line

JsonObject = dict[str, Any]
"""An object of JSON."""

STATUSES: Mapping[Refusal, int] = {
    Refusal.KEY: 401,
    Refusal.SEALED: 409,
    Refusal.INVALID: 400,
    Refusal.UNSUPPORTED: 400,
    Refusal.TOO_LARGE: 413,
    Refusal.OVERFLOW: 400,
    Refusal.BUSY: 429,
    Refusal.ENGINE: 503,
}
"""HTTP status of each refusal; no permanent one is a 5xx, which clients repeat for minutes."""
RETRIED = frozenset({Refusal.BUSY, Refusal.ENGINE})
"""Refusals after which a client may send the request again."""
RETRY_AFTER_S = 1
"""Wait that is asked for after such a refusal [s]."""
JSON_HEADERS: Mapping[str, str] = {"content-type": "application/json"}
EVENT_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""Headers of a stream: no proxy between may hold it back."""

_SESSION_HEADERS = (
    "x-claude-code-session-id", "x-session-id", "thread-id", "session-id", "thread_id",
    "session_id",
)  # fmt: skip
_LONGEST_NAME = 200
_ANSWER_ID = re.compile(r"(?:[a-z]+_)?([A-Za-z0-9]+)(?:_\d+)?")


@dataclass(frozen=True, slots=True)
class WireReply:
    """A whole answer of HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ProviderWire(ABC):
    """One provider's API. An instance holds nothing, so that one serves all sessions.

    A stream that has to wait for its answer begins with `heartbeat(call, 0)` and goes on with
    `heartbeat(call, 1)` and so on; `sent`, the number of those, then goes to `stream` or to
    `refused_in_stream`, which end it.
    """

    name: ClassVar[str]
    answer_path: ClassVar[str]
    """Pattern of the paths of calls, without what stands before them, such as `/v1`."""
    count_path: ClassVar[str] = ""
    """Pattern of the paths of requests to count; empty for a wire that has none."""
    history: ClassVar[str] = ""
    """Name of the field of a request whose elements are the conversation, if the wire reads it by
    `BodyReader.history`, so that elements that were read are not read again; empty otherwise."""

    def reader(self, body: bytes, known: KnownBodies | None = None) -> BodyReader:
        """Return the reader of a body, without what a session knows of it.

        Args:
            body: the body.
            known: the last bodies of the session; None: the whole body is read.
        """
        if known is None:
            return BodyReader(body)
        start = known.found(self.name, self.history, body)
        return BodyReader(body, wire=self.name, history=self.history, bodies=known, start=start)

    def parse(self, target: str, headers: Mapping[str, str], body: bytes | BodyReader) -> ModelCall:
        """Return the call that a request is, also a request to count.

        Args:
            target: path and query of the request.
            headers: headers of the request.
            body: its body, or the reader of it.

        Raises:
            CallRefusedError: the request cannot be read, or asks for what would change the
                policy's distribution; the message names the field.
        """
        reader = self.reader(body) if isinstance(body, bytes) else body
        try:
            try:
                fields = self.read(target, reader)
            except (CallRefusedError, RecursionError):
                whole = reader.whole()
                if whole is None:
                    raise
                reader, fields = whole, self.read(target, whole)
        except RecursionError:
            refuse("the body is nested too deeply")
        return ModelCall(wire=self.name, **fields, **_marks(target, headers, reader))

    @abstractmethod
    def read(self, target: str, body: BodyReader) -> JsonObject:
        """Return the fields of `ModelCall` that a request gives, by name; see `parse`."""

    @abstractmethod
    def answer(self, answer: ModelAnswer, call: ModelCall) -> JsonObject:
        """Return the JSON of an answer."""

    @abstractmethod
    def stream(self, answer: ModelAnswer, call: ModelCall, sent: int = 0) -> Iterator[bytes]:
        """Yield the whole events of an answer, the terminal one last.

        Args:
            answer: the answer.
            call: the call that it answers.
            sent: heartbeats that were sent before.
        """

    @abstractmethod
    def heartbeat(self, call: ModelCall, sent: int) -> bytes:
        """Return what keeps a client waiting; the first one, with `sent` 0, opens the stream."""

    @abstractmethod
    def error(self, error: CallRefusedError, status: int) -> JsonObject:
        """Return the JSON of a refusal that has a status of HTTP."""

    @abstractmethod
    def refused_in_stream(self, error: CallRefusedError, call: ModelCall, sent: int) -> bytes:
        """Return the end of a stream that has begun, for a call that gets no answer."""

    @abstractmethod
    def model(self, name: str) -> JsonObject:
        """Return the description of a model."""

    @abstractmethod
    def models(self, names: Sequence[str]) -> JsonObject:
        """Return the list of models."""

    def count(self, tokens: int) -> JsonObject:
        """Return the JSON of the number of tokens of a prompt."""
        return {"input_tokens": tokens}

    def stream_headers(self, call: ModelCall) -> Mapping[str, str]:
        """Return the headers of a stream."""
        return EVENT_HEADERS

    def refused(self, error: CallRefusedError, call: ModelCall | None = None) -> WireReply:
        """Return the reply to a call that gets no answer and whose stream has not begun.

        Args:
            error: why it gets none.
            call: the call; None if it could not be read.
        """
        status = STATUSES[error.refusal]
        body = json_bytes(self.error(error, status))
        return WireReply(status, refusal_headers(error.refusal), body)


def refusal_headers(refusal: Refusal) -> Mapping[str, str]:
    """Return the headers of a refusal, which tell clients whether to try again."""
    if refusal in RETRIED:
        return {**JSON_HEADERS, "retry-after": str(RETRY_AFTER_S), "x-should-retry": "true"}
    return {**JSON_HEADERS, "x-should-retry": "false"}


def _marks(target: str, headers: Mapping[str, str], body: BodyReader) -> JsonObject:
    """Return the fields of `ModelCall` that are the same on every wire.

    The digest is that of the path without its query, which may hold a key.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    path = target.partition("?")[0]
    retries = lower.get("x-stainless-retry-count", "")
    session = next((lower[name] for name in _SESSION_HEADERS if lower.get(name)), "")
    return {
        "digest": body.digest(path),
        "retry": retries.isdecimal() and int(retries) > 0,
        "client": one_line(lower.get("user-agent", ""), _LONGEST_NAME),
        "lineage": one_line(session, _LONGEST_NAME),
    }


def answer_id_in(item_id: str) -> str:
    """Return the minted id in an id of a wire, such as "rs_ID" or "msg_ID_1"; empty for another."""
    found = _ANSWER_ID.fullmatch(item_id)
    return found[1] if found else ""


def end_reason(end: AnswerEnd, stop: str, tool_calls: str, length: str) -> str:
    """Return the word of a wire for the end of an answer."""
    return {AnswerEnd.STOP: stop, AnswerEnd.TOOL_CALLS: tool_calls, AnswerEnd.LENGTH: length}[end]


def server_sent(data: JsonObject, event: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = b"" if event is None else f"event: {event}\n".encode()
    return head + b"data: " + json_bytes(data) + b"\n\n"

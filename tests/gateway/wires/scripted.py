"""A gateway of values: requests of SDKs reach the wires, and a script answers them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import httpx2

from rollart_flow.gateway.core.calls import (
    AnswerEnd,
    CallRefusedError,
    ModelAnswer,
    ModelCall,
    Refusal,
)
from rollart_flow.gateway.wires.base import JSON_HEADERS, ProviderWire, WireReply
from rollart_flow.gateway.wires.events import json_bytes
from rollart_flow.gateway.wires.registry import Operation, Route, find_route, presented_key
from rollart_flow.types import Action, ToolCall

KEY = "k" * 64
ANSWER_ID = "a1b2c3d4e5f6a7b8c9d0e1f2"
SIGNATURE = "s1g2n3a4t5u6r7e8"
CALLS = (
    ToolCall("call00000", "read", {"path": "ä.py", "lines": [1, 2.5, None]}),
    ToolCall("call00001", "list", {}),
)
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAQAAAADCAIAAAA7ljmRAAAAEklEQVR4nGM8wcUAB0wMDDg4AB++ANjN"
    "sqMBAAAAAElFTkSuQmCC"
)
"""A PNG file of 4 x 3 pixels in base64."""
TEXT = "Now I read the file, which is somewhat longer than one piece of a stream — 😀."


def answer(text: str = TEXT, thinking: str | None = None, calls: bool = False) -> ModelAnswer:
    """An answer with a text, thinking and two parallel calls, one of them without arguments."""
    return ModelAnswer(
        answer_id=ANSWER_ID,
        action=Action(text, thinking, CALLS if calls else ()),
        end=AnswerEnd.TOOL_CALLS if calls else AnswerEnd.STOP,
        prompt_tokens=100,
        cached_tokens=60,
        answer_tokens=20,
        thinking_tokens=7 if thinking else 0,
        signature=SIGNATURE if thinking else "",
    )


class ScriptedGateway:
    """Answers each request by the script; a wrong key is refused.

    Args:
        script: an answer, a number of tokens or a refusal for each request.
        beats: heartbeats before the answer of a stream.
    """

    def __init__(self, *script: ModelAnswer | CallRefusedError | int, beats: int = 0) -> None:
        self._script = iter(script)
        self._beats = beats
        self.calls: list[ModelCall] = []
        self.sent: list[bytes] = []
        """Bodies of the replies."""

    def client(self) -> httpx2.Client:
        """A client of HTTP whose requests come here."""

        def handle(request: httpx2.Request) -> httpx2.Response:
            target = request.url.raw_path.decode()
            reply = self.reply(request.method, target, dict(request.headers), request.content)
            return httpx2.Response(reply.status, headers=dict(reply.headers), content=reply.body)

        return httpx2.Client(transport=httpx2.MockTransport(handle))

    def reply(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> WireReply:
        """Answer a request."""
        reply = self._reply(method, target, headers, body)
        self.sent.append(reply.body)
        return reply

    def _reply(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> WireReply:
        route = find_route(method, target, headers)
        if isinstance(route, WireReply):
            return route
        if route.operation is Operation.ALIVE:
            return WireReply(200, JSON_HEADERS, b"")
        try:
            if presented_key(target, headers) != KEY:
                raise CallRefusedError(Refusal.KEY, "no session has this key")
            if route.operation is Operation.MODELS:
                return _json(route.wire.models(("policy",)))
            if route.operation is Operation.MODEL:
                return _json(route.wire.model(route.model))
            call = route.wire.parse(target, headers, body)
        except CallRefusedError as error:
            return route.wire.refused(error)
        self.calls.append(call)
        return self._answered(route, call)

    def _answered(self, route: Route, call: ModelCall) -> WireReply:
        wire, outcome = route.wire, next(self._script)
        if isinstance(outcome, CallRefusedError) and not self._beats:
            return wire.refused(outcome, call)
        if isinstance(outcome, int):
            return _json(wire.count(outcome))
        if isinstance(outcome, ModelAnswer) and not call.stream:
            return _json(wire.answer(outcome, call))
        return WireReply(
            200, wire.stream_headers(call), b"".join(self._stream(wire, call, outcome))
        )

    def _stream(
        self, wire: ProviderWire, call: ModelCall, outcome: ModelAnswer | CallRefusedError | int
    ) -> Iterator[bytes]:
        yield from (wire.heartbeat(call, number) for number in range(self._beats))
        if isinstance(outcome, ModelAnswer):
            yield from wire.stream(outcome, call, self._beats)
        elif isinstance(outcome, CallRefusedError):
            yield wire.refused_in_stream(outcome, call, self._beats)


def refusal(kind: Refusal) -> CallRefusedError:
    """A refusal of a kind, with the figures of an overflow."""
    return CallRefusedError(kind, f"this is {kind}", tokens=5000, limit=4096)


def shortened_answer(**fields: Any) -> ModelAnswer:
    """The answer that ran out of tokens."""
    return replace(answer("Half of", None), end=AnswerEnd.LENGTH, **fields)


def _json(value: dict[str, Any]) -> WireReply:
    return WireReply(200, JSON_HEADERS, json_bytes(value))

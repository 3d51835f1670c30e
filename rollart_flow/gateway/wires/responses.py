"""The wire of OpenAI's responses: `POST /v1/responses`, `/v1/responses/compact` and
`/v1/responses/input_tokens`.

Its waiting stream has events with data, since Codex's timer ignores comments. Their numbers go on
in the answer, and the response has one id from its first event: that of the request's digest.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.wires.base import (
    EVENT_HEADERS,
    JsonObject,
    ProviderWire,
    WireReply,
    end_reason,
    server_sent,
)
from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.events import blocks_of, events_of
from rollart_flow.gateway.wires.openai_errors import (
    message_of,
    openai_error,
    openai_model,
    openai_models,
)
from rollart_flow.gateway.wires.responses_compaction import compacted
from rollart_flow.gateway.wires.responses_items import ItemEvents, item_of
from rollart_flow.gateway.wires.responses_request import read_responses

_CODES: Mapping[Refusal, str] = {
    Refusal.OVERFLOW: "context_length_exceeded",
    Refusal.BUSY: "rate_limit_exceeded",
    Refusal.ENGINE: "server_error",
}
"""Codes of a failed response. Codex repeats one that it does not know, so that what is permanent
is an invalid prompt."""


class ResponsesWire(ProviderWire):
    """OpenAI's responses."""

    name = "responses"
    answer_path = "/responses(?:/compact)?"
    count_path = "/responses/input_tokens"
    history = "input"

    def read(self, target: str, body: BodyReader) -> JsonObject:
        return read_responses(target, body)

    def answer(self, answer: ModelAnswer, call: ModelCall) -> JsonObject:
        if call.reply.get("compacts"):
            return compacted(answer, call, _usage(answer))
        blocks = enumerate(blocks_of(answer))
        output = [item_of(index, block, answer, call) for index, block in blocks]
        status = end_reason(answer.end, "completed", "completed", "incomplete")
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **_response(call, status),
            "incomplete_details": why,
            "output": output,
            "usage": _usage(answer),
        }

    def stream(self, answer: ModelAnswer, call: ModelCall, sent: int = 0) -> Iterator[bytes]:
        number = sent
        if number == 0:
            yield self.heartbeat(call, number)
            number += 1
        yield self.heartbeat(call, number)
        items = ItemEvents(answer, call)
        for event in events_of(answer):
            for kind, fields in items.of(event):
                number += 1
                yield _event(kind, number, fields)
        whole = self.answer(answer, call)
        yield _event(f"response.{whole['status']}", number + 1, {"response": whole})

    def heartbeat(self, call: ModelCall, sent: int) -> bytes:
        kind = "response.in_progress" if sent else "response.created"
        return _event(kind, sent, {"response": _response(call, "in_progress")})

    def error(self, error: CallRefusedError, status: int) -> JsonObject:
        return openai_error(error)

    def refused(self, error: CallRefusedError, call: ModelCall | None = None) -> WireReply:
        """Return the reply; an overflow is a failed stream, which clients know how to handle."""
        if call is None or not call.stream or error.refusal is not Refusal.OVERFLOW:
            return super().refused(error, call)
        body = self.heartbeat(call, 0) + self.refused_in_stream(error, call, 1)
        return WireReply(200, EVENT_HEADERS, body)

    def refused_in_stream(self, error: CallRefusedError, call: ModelCall, sent: int) -> bytes:
        code = _CODES.get(error.refusal, "invalid_prompt")
        why = {"code": code, "message": message_of(error)}
        failed = {**_response(call, "failed"), "error": why}
        return _event("response.failed", sent, {"response": failed})

    def count(self, tokens: int) -> JsonObject:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def model(self, name: str) -> JsonObject:
        return openai_model(name)

    def models(self, names: Sequence[str]) -> JsonObject:
        return openai_models(names)


def _event(kind: str, number: int, fields: JsonObject) -> bytes:
    return server_sent({"type": kind, "sequence_number": number, **fields}, kind)


def _response(call: ModelCall, status: str) -> JsonObject:
    """Return a response without output."""
    return {
        "id": f"resp_{call.digest[:32]}",
        "object": "response",
        "created_at": call.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": call.max_tokens,
        "metadata": {},
        "model": call.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
        "total_tokens": answer.prompt_tokens + answer.answer_tokens,
    }


WIRE = ResponsesWire()

"""The wire of Anthropic's messages: `POST /v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.wires.base import (
    JsonObject,
    ProviderWire,
    end_reason,
    server_sent,
)
from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.events import (
    AnswerBlock,
    BlockBegins,
    BlockEnds,
    BlockPiece,
    CallBlock,
    TextBlock,
    ThinkingBlock,
    blocks_of,
    events_of,
)
from rollart_flow.gateway.wires.messages_request import read_messages

_TYPES: Mapping[Refusal, str] = {
    Refusal.KEY: "authentication_error",
    Refusal.TOO_LARGE: "request_too_large",
    Refusal.BUSY: "rate_limit_error",
    Refusal.ENGINE: "api_error",
}


class MessagesWire(ProviderWire):
    """Anthropic's messages."""

    name = "messages"
    answer_path = "/messages"
    count_path = "/messages/count_tokens"
    history = "messages"

    def read(self, target: str, body: BodyReader) -> JsonObject:
        counts = target.partition("?")[0].rstrip("/").endswith("/count_tokens")
        return read_messages(body, counts=counts)

    def answer(self, answer: ModelAnswer, call: ModelCall) -> JsonObject:
        content = [_whole(block) for block in blocks_of(answer) if not _is_empty(block)]
        return {
            **_head(answer, call),
            "content": content,
            "stop_reason": _stop(answer),
            "stop_sequence": None,
            "stop_details": None,
            "usage": _usage(answer, answer.answer_tokens),
        }

    def stream(self, answer: ModelAnswer, call: ModelCall, sent: int = 0) -> Iterator[bytes]:
        begun = {
            **_head(answer, call),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(answer, 0),
        }
        yield _event("message_start", message=begun)
        yield _event("ping")
        for event in events_of(answer):
            if _is_empty(event.block):
                continue
            match event:
                case BlockBegins(index, block):
                    yield _event("content_block_start", index=index, content_block=_begun(block))
                case BlockPiece(index, block, text):
                    yield _event("content_block_delta", index=index, delta=_delta(block, text))
                case BlockEnds(index, block):
                    if isinstance(block, ThinkingBlock):
                        signed = {"type": "signature_delta", "signature": block.signature}
                        yield _event("content_block_delta", index=index, delta=signed)
                    yield _event("content_block_stop", index=index)
        delta = {"stop_reason": _stop(answer), "stop_sequence": None, "stop_details": None}
        yield _event("message_delta", delta=delta, usage=_usage(answer, answer.answer_tokens))
        yield _event("message_stop")

    def heartbeat(self, call: ModelCall, sent: int) -> bytes:
        return _event("ping")

    def error(self, error: CallRefusedError, status: int) -> JsonObject:
        kind = "not_found_error" if status == 404 else _TYPES.get(error.refusal)
        message = error.message
        if error.refusal is Refusal.OVERFLOW and error.tokens is not None:
            message = f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
        return {
            "type": "error",
            "error": {"type": kind or "invalid_request_error", "message": message},
            "request_id": None,
        }

    def refused_in_stream(self, error: CallRefusedError, call: ModelCall, sent: int) -> bytes:
        return server_sent(self.error(error, 200), "error")

    def model(self, name: str) -> JsonObject:
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": "1970-01-01T00:00:00Z",
        }

    def models(self, names: Sequence[str]) -> JsonObject:
        return {
            "data": [self.model(name) for name in names],
            "has_more": False,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }


def _event(kind: str, **fields: Any) -> bytes:
    return server_sent({"type": kind, **fields}, kind)


def _head(answer: ModelAnswer, call: ModelCall) -> JsonObject:
    return {
        "id": f"msg_{answer.answer_id}",
        "type": "message",
        "role": "assistant",
        "model": call.model,
    }


def _is_empty(block: AnswerBlock) -> bool:
    """Return whether a block has no form here: the API knows no empty text."""
    return isinstance(block, TextBlock) and not block.text


def _whole(block: AnswerBlock) -> JsonObject:
    match block:
        case ThinkingBlock(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case TextBlock(text):
            return {"type": "text", "text": text}
        case CallBlock():
            return {**_begun(block), "input": block.arguments}


def _begun(block: AnswerBlock) -> JsonObject:
    match block:
        case ThinkingBlock():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case TextBlock():
            return {"type": "text", "text": ""}
        case CallBlock(call):
            call_id = f"toolu_{call.call_id}"
            return {"type": "tool_use", "id": call_id, "name": block.name, "input": {}}


def _delta(block: AnswerBlock, text: str) -> JsonObject:
    match block:
        case ThinkingBlock():
            return {"type": "thinking_delta", "thinking": text}
        case TextBlock():
            return {"type": "text_delta", "text": text}
        case CallBlock():
            return {"type": "input_json_delta", "partial_json": text}


def _stop(answer: ModelAnswer) -> str:
    return end_reason(answer.end, "end_turn", "tool_use", "max_tokens")


def _usage(answer: ModelAnswer, answered: int) -> JsonObject:
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answered,
    }


WIRE = MessagesWire()

"""The wire of OpenAI's chat completions: `POST /v1/chat/completions`."""

from collections.abc import Iterator, Sequence
from typing import Any

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.wires.base import (
    JsonObject,
    ProviderWire,
    end_reason,
    server_sent,
)
from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.chat_request import read_chat
from rollart_flow.gateway.wires.events import (
    BlockEnds,
    BlockPiece,
    CallBlock,
    TextBlock,
    ThinkingBlock,
    blocks_of,
    events_of,
)
from rollart_flow.gateway.wires.openai_errors import openai_error, openai_model, openai_models

_DONE = b"data: [DONE]\n\n"
_COMMENT = b": waiting\n\n"


class ChatWire(ProviderWire):
    """OpenAI's chat completions."""

    name = "chat"
    answer_path = "/chat/completions"
    history = "messages"

    def read(self, target: str, body: BodyReader) -> JsonObject:
        return read_chat(body)

    def answer(self, answer: ModelAnswer, call: ModelCall) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": None, "refusal": None}
        calls: list[JsonObject] = []
        for block in blocks_of(answer):
            match block:
                case ThinkingBlock(text=text):
                    message[_thinking_key(call)] = text
                case TextBlock(text=text):
                    message["content"] = text
                case CallBlock():
                    calls.append(_call(block))
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": _finish(answer),
            "logprobs": None,
        }
        head = _head(answer, call, "chat.completion")
        return {**head, "choices": [choice], "usage": _usage(answer)}

    def stream(self, answer: ModelAnswer, call: ModelCall, sent: int = 0) -> Iterator[bytes]:
        head = _head(answer, call, "chat.completion.chunk")

        def chunk(delta: JsonObject, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return server_sent({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        calls: list[JsonObject] = []
        for event in events_of(answer):
            match event:
                case BlockPiece(block=ThinkingBlock(), text=text):
                    yield chunk({_thinking_key(call): text})
                case BlockPiece(block=TextBlock(), text=text):
                    yield chunk({"content": text})
                case BlockEnds(block=CallBlock() as block):
                    calls.append({"index": len(calls), **_call(block)})
        if calls:  # all in one chunk, whole: clients differ in how they join several
            yield chunk({"tool_calls": calls})
        yield chunk({}, _finish(answer))
        if call.reply.get("usage"):
            yield server_sent({**head, "choices": [], "usage": _usage(answer)})
        yield _DONE

    def heartbeat(self, call: ModelCall, sent: int) -> bytes:
        return _COMMENT

    def error(self, error: CallRefusedError, status: int) -> JsonObject:
        return openai_error(error)

    def refused_in_stream(self, error: CallRefusedError, call: ModelCall, sent: int) -> bytes:
        return server_sent(openai_error(error))

    def count(self, tokens: int) -> JsonObject:
        raise CallRefusedError(Refusal.UNSUPPORTED, "chat completions have no route that counts")

    def model(self, name: str) -> JsonObject:
        return openai_model(name)

    def models(self, names: Sequence[str]) -> JsonObject:
        return openai_models(names)


def _head(answer: ModelAnswer, call: ModelCall, kind: str) -> JsonObject:
    return {
        "id": f"chatcmpl-{answer.answer_id}",
        "object": kind,
        "created": call.created,
        "model": call.model,
        "system_fingerprint": None,
    }


def _call(block: CallBlock) -> JsonObject:
    function = {"name": block.name, "arguments": block.text}
    return {"id": f"call_{block.call.call_id}", "type": "function", "function": function}


def _thinking_key(call: ModelCall) -> str:
    return str(call.reply.get("thinking", "reasoning_content"))


def _finish(answer: ModelAnswer) -> str:
    return end_reason(answer.end, "stop", "tool_calls", "length")


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.answer_tokens,
        "total_tokens": answer.prompt_tokens + answer.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
    }


WIRE = ChatWire()

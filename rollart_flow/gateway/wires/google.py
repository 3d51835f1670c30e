"""The wire of Google: `generateContent`, `streamGenerateContent` and `countTokens` of a model.

A stream is of server-sent events with `alt=sse`, and one JSON array otherwise. Each answer has a
thought signature on its first part that is no thought, since clients keep those parts: that of its
thinking, or the minted id of the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.wires.base import (
    EVENT_HEADERS,
    JSON_HEADERS,
    RETRIED,
    RETRY_AFTER_S,
    STATUSES,
    JsonObject,
    ProviderWire,
    end_reason,
    server_sent,
)
from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.events import (
    NO_CONTENT,
    AnswerBlock,
    BlockEnds,
    BlockPiece,
    CallBlock,
    TextBlock,
    ThinkingBlock,
    blocks_of,
    events_of,
    json_bytes,
)
from rollart_flow.gateway.wires.google_request import packed_signature, read_google

_WORDS: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_BLANK = b"\n\n"
"""Heartbeat of a stream of events: Google's own client for Python fails at a comment."""


class GoogleWire(ProviderWire):
    """Google's content of a generative model."""

    name = "google"
    answer_path = r"/models/.+:(?:g|streamG)enerateContent"
    count_path = r"/models/.+:countTokens"
    history = "contents"

    def read(self, target: str, body: BodyReader) -> JsonObject:
        return read_google(target, body)

    def answer(self, answer: ModelAnswer, call: ModelCall) -> JsonObject:
        parts = _signed([_part(block, block.text) for block in blocks_of(answer)], answer)
        return _last(_chunk(parts, answer, call), answer)

    def stream(self, answer: ModelAnswer, call: ModelCall, sent: int = 0) -> Iterator[bytes]:
        parts = _signed([*_pieces(answer)], answer)
        chunks = [_chunk([part], answer, call) for part in parts]
        chunks[-1] = _last(chunks[-1], answer)
        if _is_array(call):
            yield from _array(chunks, sent)
        else:
            yield from map(server_sent, chunks)

    def heartbeat(self, call: ModelCall, sent: int) -> bytes:
        if not _is_array(call):
            return _BLANK
        return b"\n" if sent else b"["

    def error(self, error: CallRefusedError, status: int) -> JsonObject:
        message = error.message
        if error.refusal is Refusal.OVERFLOW and error.tokens is not None:
            message = (
                f"The input token count ({error.tokens}) exceeds the maximum number of tokens "
                f"allowed ({error.limit})."
            )
        word = _WORDS.get(status, "INVALID_ARGUMENT")
        found: JsonObject = {"code": status, "message": message, "status": word}
        if error.refusal in RETRIED:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            found["details"] = [{"@type": kind, "retryDelay": f"{RETRY_AFTER_S}s"}]
        return {"error": found}

    def refused_in_stream(self, error: CallRefusedError, call: ModelCall, sent: int) -> bytes:
        refused = self.error(error, STATUSES[error.refusal])
        return b"".join(_array([refused], sent)) if _is_array(call) else server_sent(refused)

    def count(self, tokens: int) -> JsonObject:
        return {"totalTokens": tokens}

    def stream_headers(self, call: ModelCall) -> Mapping[str, str]:
        return {**EVENT_HEADERS, **JSON_HEADERS} if _is_array(call) else EVENT_HEADERS

    def model(self, name: str) -> JsonObject:
        return {
            "name": f"models/{name.removeprefix('models/')}",
            "version": "0",
            "displayName": name,
            "supportedGenerationMethods": ["generateContent", "countTokens"],
        }

    def models(self, names: Sequence[str]) -> JsonObject:
        return {"models": [self.model(name) for name in names]}


def _is_array(call: ModelCall) -> bool:
    return bool(call.reply.get("array"))


def _array(chunks: Sequence[JsonObject], sent: int) -> Iterator[bytes]:
    """Yield a JSON array item by item; the first heartbeat has begun it."""
    for number, chunk in enumerate(chunks):
        begin = b"," if number else b"" if sent else b"["
        yield begin + json_bytes(chunk) + (b"]" if number == len(chunks) - 1 else b"")


def _part(block: AnswerBlock, text: str) -> JsonObject:
    """Return the part of a text of a block, which is whole for a call."""
    match block:
        case ThinkingBlock():
            return {"text": text, "thought": True}
        case TextBlock():
            return {"text": text or NO_CONTENT}
        case CallBlock(call):
            called = {"id": call.call_id, "name": block.name, "args": block.arguments}
            return {"functionCall": called}


def _pieces(answer: ModelAnswer) -> Iterator[JsonObject]:
    """Yield the parts of a stream: texts in pieces, calls whole."""
    for event in events_of(answer):
        match event:
            case BlockPiece(block=ThinkingBlock() | TextBlock() as block, text=text):
                yield _part(block, text)
            case BlockEnds(block=CallBlock() as block):
                yield _part(block, block.text)
            case BlockEnds(block=TextBlock(text="") as block):
                yield _part(block, "")


def _signed(parts: list[JsonObject], answer: ModelAnswer) -> list[JsonObject]:
    """Return parts with the signature of the answer on the first one that is no thought."""
    first = next(index for index, part in enumerate(parts) if "thought" not in part)
    signature = packed_signature(answer.signature or answer.answer_id)
    parts[first] = {**parts[first], "thoughtSignature": signature}
    return parts


def _chunk(parts: list[JsonObject], answer: ModelAnswer, call: ModelCall) -> JsonObject:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
    return {
        "candidates": [candidate],
        "modelVersion": call.model,
        "responseId": answer.answer_id,
    }


def _last(chunk: JsonObject, answer: ModelAnswer) -> JsonObject:
    """Return the last chunk of an answer, which has its end and its usage."""
    [candidate] = chunk["candidates"]
    reason = end_reason(answer.end, "STOP", "STOP", "MAX_TOKENS")
    ended = {**candidate, "finishReason": reason}
    return {**chunk, "candidates": [ended], "usageMetadata": _usage(answer)}


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    return {
        "promptTokenCount": answer.prompt_tokens,
        "cachedContentTokenCount": answer.cached_tokens,
        "candidatesTokenCount": answer.answer_tokens - answer.thinking_tokens,
        "thoughtsTokenCount": answer.thinking_tokens,
        "totalTokenCount": answer.prompt_tokens + answer.answer_tokens,
    }


WIRE = GoogleWire()

"""Items of a response, and the events of its stream that make each of them."""

from collections.abc import Iterator
from typing import Any, TypeAlias

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall
from rollart_flow.gateway.wires.base import JsonObject
from rollart_flow.gateway.wires.events import (
    AnswerBlock,
    AnswerEvent,
    BlockBegins,
    BlockPiece,
    CallBlock,
    TextBlock,
    ThinkingBlock,
)
from rollart_flow.gateway.wires.responses_tools import call_item

KindAndFields: TypeAlias = tuple[str, JsonObject]
"""Type of an event, and its fields without the number."""

_SUMMARY = "response.reasoning_summary"
_EMPTY_FIELDS = {"summary": [], "content": [], "arguments": "", "input": ""}


def item_of(index: int, block: AnswerBlock, answer: ModelAnswer, call: ModelCall) -> JsonObject:
    """Return the whole item of a block."""
    match block:
        case ThinkingBlock(text, signature):
            return {
                "type": "reasoning",
                "id": f"rs_{answer.answer_id}",
                "summary": [{"type": "summary_text", "text": text}],
                "encrypted_content": signature,
            }
        case TextBlock(text):
            return {
                "type": "message",
                "id": f"msg_{answer.answer_id}",
                "status": "completed",
                "role": "assistant",
                "content": [_text_part(text)],
            }
        case CallBlock():
            return call_item(block, call, f"{answer.answer_id}_{index}")


class ItemEvents:
    """The events of a stream for the neutral events of an answer.

    Args:
        answer: the answer.
        call: the request.
    """

    def __init__(self, answer: ModelAnswer, call: ModelCall) -> None:
        self._answer, self._call = answer, call

    def of(self, event: AnswerEvent) -> Iterator[KindAndFields]:
        """Yield the events of a neutral event."""
        item = item_of(event.index, event.block, self._answer, self._call)
        at: JsonObject = {"item_id": item["id"], "output_index": event.index}
        match event:
            case BlockBegins(index):
                yield "response.output_item.added", {"output_index": index, "item": _begun(item)}
                yield from _opened(item, at)
            case BlockPiece(text=text):
                yield from _piece(item, at, text)
            case _:
                yield from _closed(item, at)
                yield "response.output_item.done", {"output_index": event.index, "item": item}


def _begun(item: JsonObject) -> JsonObject:
    """Return an item at its begin, without what its events bring."""
    empty: dict[str, Any] = {name: value for name, value in _EMPTY_FIELDS.items() if name in item}
    if "status" in item:
        empty["status"] = "in_progress"
    return {**item, **empty}


def _opened(item: JsonObject, at: JsonObject) -> Iterator[KindAndFields]:
    match item["type"]:
        case "reasoning":
            part = {"type": "summary_text", "text": ""}
            yield f"{_SUMMARY}_part.added", {**at, "summary_index": 0, "part": part}
        case "message":
            place = {**at, "content_index": 0}
            yield "response.content_part.added", {**place, "part": _text_part("")}


def _piece(item: JsonObject, at: JsonObject, text: str) -> Iterator[KindAndFields]:
    match item["type"]:
        case "reasoning":
            yield f"{_SUMMARY}_text.delta", {**at, "summary_index": 0, "delta": text}
        case "message":
            place = {**at, "content_index": 0}
            yield "response.output_text.delta", {**place, "delta": text, "logprobs": []}
        case "function_call":
            yield "response.function_call_arguments.delta", {**at, "delta": text}


def _closed(item: JsonObject, at: JsonObject) -> Iterator[KindAndFields]:
    match item["type"]:
        case "reasoning":
            place, part = {**at, "summary_index": 0}, item["summary"][0]
            yield f"{_SUMMARY}_text.done", {**place, "text": part["text"]}
            yield f"{_SUMMARY}_part.done", {**place, "part": part}
        case "message":
            place, part = {**at, "content_index": 0}, item["content"][0]
            yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**place, "part": part}
        case "function_call":
            done = {**at, "name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", done
        case "custom_tool_call":  # its text is not that of the pieces, which are JSON
            yield "response.custom_tool_call_input.delta", {**at, "delta": item["input"]}
            yield "response.custom_tool_call_input.done", {**at, "input": item["input"]}


def _text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

"""Requests for Anthropic's messages become the fields of `ModelCall`."""

import re
from collections.abc import Iterator
from typing import Any, Self

from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.conversation import (
    ConversationBuilder,
    HistoryPlace,
    call_from,
    image_of_base64,
    image_of_url,
)
from rollart_flow.gateway.wires.events import NO_CONTENT
from rollart_flow.gateway.wires.reading import Fields
from rollart_flow.gateway.wires.settings import (
    CHANGES_DISTRIBUTION,
    check_hosted,
    function_of,
    refuse_given,
    sampling_of,
)
from rollart_flow.types import Action, Image, Tool, ToolCall
from rollart_flow.types.messages import Part

_NUMBERS = ("temperature", "top_p", "top_k")
_REFUSED = ("mcp_servers", "container", "output_format")
_WITHHELD = ("web_search_", "web_fetch_")
"""Begins of the types of a provider's tools that clients offer by themselves."""
_BILLING = "x-anthropic-billing-header"
_COUNTDOWN = re.compile(r"<total_tokens>[^<\n]{0,40}tokens left(?:</total_tokens>)?")


class _MessagesHistory(ConversationBuilder):
    """A conversation with the role of its last message."""

    def __init__(self) -> None:
        super().__init__()
        self.role = ""

    def place(self) -> HistoryPlace:
        return (*super().place(), self.role)

    def at(self, place: HistoryPlace) -> Self:
        made = super().at(place)
        made.role = str(place[-1])
        return made


def read_messages(body: BodyReader, *, counts: bool) -> dict[str, Any]:
    """Return the fields of a call.

    Args:
        body: the body of the request.
        counts: whether the request is to count, which may end with the assistant.

    Raises:
        CallRefusedError: the request cannot be read, or asks for what is not here.
    """
    dropped: set[str] = set()
    with body.fields(dropped) as fields:
        refuse_given(fields, _REFUSED)
        opening = "\n\n".join(_system(fields, dropped))
        history = body.history(fields, "messages", _MessagesHistory, _message)
        history.open(opening)
        if history.role == "assistant" and not counts:
            fields.unsupported("messages", "ends with the assistant: an answer is not prefilled")
        tools = _tools(fields)
        found = {
            "messages": history.messages(),
            "echoes": history.echoes(),
            "tools": tuple(tools) if _may_call(fields) else (),
            "model": fields.text("model") or "",
            "max_tokens": fields.count("max_tokens"),
            "sampling": _sampling(fields),
            "stream": fields.flag("stream"),
        }
    return found | {"dropped": history.dropped(dropped)}


def _sampling(fields: Fields) -> dict[str, Any]:
    found = sampling_of(fields, _NUMBERS, stop="stop_sequences")
    if (thinking := fields.mapping("thinking")) is not None:
        found["thinking"] = dict(thinking)
    if (output := fields.child("output_config")) is not None:
        with output:
            if (effort := output.text("effort")) is not None:
                found["effort"] = effort
            refuse_given(output, ("format",))
    return found


def _may_call(fields: Fields) -> bool:
    """Return whether tools may be called; a request that forces a call is refused."""
    choice = fields.child("tool_choice")
    if choice is None:
        return True
    with choice:
        kind = choice.need("type")
    if kind not in ("auto", "none"):
        fields.unsupported("tool_choice", f"should be auto or none: another {CHANGES_DISTRIBUTION}")
    return kind != "none"


def _tools(fields: Fields) -> list[Tool]:
    hosted, found = [], []
    for tool in fields.children("tools"):
        kind = tool.text("type") or "custom"
        if kind.startswith(_WITHHELD):
            hosted.append(kind)
            tool.withhold("type")
        elif kind != "custom":
            tool.unsupported("type", f"should be custom, got {kind!r}, whose schema is not known")
        else:
            found.append(function_of(tool, tool.need("name"), tool.mapping("input_schema")))
    check_hosted(fields, hosted, found)
    return found


def _system(fields: Fields, dropped: set[str]) -> Iterator[str]:
    """Yield the texts of the system, without what changes with every call of one client."""
    if isinstance(fields.raw("system"), str):
        texts = [fields.need("system")]
    else:
        texts = [_text(block) for block in fields.children("system")]
    for text in texts:
        if text.startswith(_BILLING):
            dropped.add(f"system.{_BILLING}")
            continue
        still = _COUNTDOWN.sub("", text)
        if still != text:
            dropped.add("system.total_tokens")
        yield still


def _text(block: Fields) -> str:
    block.one_of("type", ("text",))
    return block.need("text")


def _message(message: Fields, history: _MessagesHistory) -> None:
    role = message.one_of("role", ("user", "assistant", "system"))
    blocks = _blocks(message)
    if role == "assistant":
        _assistant(blocks, history)
    elif role == "system":
        history.system("\n\n".join(_text(block) for block in blocks))
    else:
        _user(blocks, history)
    history.role = role


def _blocks(holder: Fields) -> Iterator[Fields]:
    """Yield the blocks of a content, which may be one text."""
    if isinstance(holder.raw("content"), str):
        yield Fields({"type": "text", "text": holder.need("content")}, holder.place, set())
    elif "content" not in holder:
        holder.wrong("content", "a text or a list")
    else:
        yield from holder.children("content")


def _user(blocks: Iterator[Fields], history: ConversationBuilder) -> None:
    parts: list[Part] = []
    results = 0
    for block in blocks:
        if block.need("type") != "tool_result":
            parts.append(_part(block))
            continue
        if parts:
            history.user(parts)
            parts = []
        results += 1
        inner = _blocks(block) if "content" in block else iter(())
        history.result(block.need("tool_use_id"), [_part(each) for each in inner])
    if parts or not results:
        history.user(parts)


def _part(block: Fields) -> Part:
    kind = block.need("type")
    if kind == "text":
        return block.need("text")
    if kind == "image":
        return _image(block)
    source = block.child("source") if kind == "document" else None
    if source is None:
        block.unsupported("type", f"should be text, image or tool_result, got {kind!r}")
    with source:
        if source.need("type") != "text":
            source.unsupported("type", "should be text: other documents are not read here")
        source.text("media_type")
        return source.need("data")


def _image(block: Fields) -> Image:
    source = block.child("source")
    if source is None:
        block.wrong("source", "an object")
    with source:
        kind = source.need("type")
        if kind == "url":
            return image_of_url(source.need("url"), f"{source.place}.url")
        if kind != "base64":
            source.unsupported("type", f"should be base64, got {kind!r}")
        source.text("media_type")
        return image_of_base64(source.need("data"), f"{source.place}.data")


def _assistant(blocks: Iterator[Fields], history: ConversationBuilder) -> None:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[ToolCall] = []
    echoes: list[str] = []
    for block in blocks:
        match block.need("type"):
            case "text":
                texts.append(block.need("text"))
            case "thinking":
                thinking.append(block.need("thinking"))
                echoes.append(block.text("signature") or "")
            case "redacted_thinking":
                echoes.append(block.text("data") or "")
            case "tool_use":
                given = block.mapping("input") or {}
                calls.append(call_from(block.need("id"), block.need("name"), given))
            case kind:
                block.unsupported("type", f"should be text, thinking or tool_use, got {kind!r}")
    text = "".join(texts)
    said = "" if text == NO_CONTENT else text
    history.assistant(Action(said, "\n\n".join(thinking) or None, tuple(calls)), echoes)

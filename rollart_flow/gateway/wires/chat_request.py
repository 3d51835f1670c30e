"""Requests for chat completions become the fields of `ModelCall`."""

from collections.abc import Iterator
from typing import Any, Self, cast

from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.conversation import (
    ConversationBuilder,
    HistoryPlace,
    call_from,
    image_of_url,
)
from rollart_flow.gateway.wires.reading import Fields, read_object
from rollart_flow.gateway.wires.settings import (
    CHANGES_DISTRIBUTION,
    check_hosted,
    function_of,
    refuse_format,
    refuse_given,
    refuse_several,
    sampling_of,
)
from rollart_flow.types import Action, Tool, ToolCall
from rollart_flow.types.messages import Part

_NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed",
)  # fmt: skip
_REFUSED = (
    "logit_bias", "functions", "function_call", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "structured_outputs", "grammar", "json_schema", "logits_processors",
    "bad_words", "allowed_token_ids", "audio", "continue_final_message", "use_beam_search",
)  # fmt: skip
_WITHHELD = ("web_search", "web_search_preview", "image_generation")
"""Tools of a provider that clients offer by themselves."""
_THINKING = ("reasoning_content", "reasoning")


class _ChatHistory(ConversationBuilder):
    """A conversation with the name under which its last thinking comes, if any does."""

    def __init__(self) -> None:
        super().__init__()
        self.thinking: str | None = None

    def place(self) -> HistoryPlace:
        return (*super().place(), self.thinking)

    def at(self, place: HistoryPlace) -> Self:
        made = super().at(place)
        made.thinking = cast("str | None", place[-1])
        return made


def read_chat(body: BodyReader) -> dict[str, Any]:
    """Return the fields of a call.

    Raises:
        CallRefusedError: the request cannot be read, or asks for what is not here.
    """
    dropped: set[str] = set()
    with body.fields(dropped) as fields:
        refuse_given(fields, _REFUSED)
        refuse_several(fields, "n")
        refuse_format(fields, "response_format", "response_format")
        tools = _tools(fields)
        history = body.history(fields, "messages", _ChatHistory, _message)
        thinking = history.thinking
        reply: dict[str, object] = {} if thinking is None else {"thinking": thinking}
        if (options := fields.child("stream_options")) is not None:
            with options:
                reply["usage"] = options.flag("include_usage")
        limit = fields.count("max_completion_tokens"), fields.count("max_tokens")
        found = {
            "messages": history.messages(),
            "echoes": history.echoes(),
            "tools": tuple(tools) if _may_call(fields) else (),
            "model": fields.text("model") or "",
            "max_tokens": next((each for each in limit if each is not None), None),
            "sampling": sampling_of(fields, _NUMBERS, ("reasoning_effort",)),
            "stream": fields.flag("stream"),
            "reply": reply,
        }
    return found | {"dropped": history.dropped(dropped)}


def _may_call(fields: Fields) -> bool:
    """Return whether tools may be called; a request that forces a call is refused."""
    choice = fields.raw("tool_choice")
    if choice not in (None, "auto", "none"):
        fields.unsupported("tool_choice", f"should be auto or none: another {CHANGES_DISTRIBUTION}")
    return bool(choice != "none")


def _tools(fields: Fields) -> list[Tool]:
    hosted, found = [], []
    for tool in fields.children("tools"):
        kind = tool.need("type")
        if kind in _WITHHELD:
            hosted.append(kind)
            tool.withhold("type")
            continue
        function = tool.child("function")
        if kind != "function" or function is None:
            tool.unsupported("type", f"should be function with a function, got {kind!r}")
        with function:
            found.append(
                function_of(function, function.need("name"), function.mapping("parameters"))
            )
    check_hosted(fields, hosted, found)
    return found


def _message(message: Fields, history: _ChatHistory) -> None:
    role = message.one_of("role", ("system", "developer", "user", "assistant", "tool"))
    parts = [*_parts(message)]
    if role == "tool":
        history.result(message.need("tool_call_id"), parts, message.text("name"))
    elif role == "user":
        history.user(parts)
    elif role == "assistant":
        found = {name: message.text(name) for name in _THINKING}
        key = next((name for name, text in found.items() if text), None)
        calls = tuple(_call(call) for call in message.children("tool_calls"))
        history.assistant(Action(_text(message, parts), found[key] if key else None, calls))
        history.thinking = key or history.thinking
    else:
        history.system(_text(message, parts))


def _text(message: Fields, parts: list[Part]) -> str:
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        message.wrong("content", "text, since only the user and tools show images")
    return "".join(texts)


def _parts(message: Fields) -> Iterator[Part]:
    if isinstance(message.raw("content"), str):
        yield message.need("content")
        return
    for part in message.children("content"):
        kind = part.need("type")
        if kind == "image_url":
            yield image_of_url(_url(part), f"{part.place}.image_url")
        elif kind in ("text", "refusal"):
            yield part.need(kind)
        else:
            part.unsupported("type", f"should be text or image_url, got {kind!r}")


def _url(part: Fields) -> str:
    if isinstance(part.raw("image_url"), str):
        return part.need("image_url")
    image = part.child("image_url")
    if image is None:
        part.wrong("image_url", "an object with a url")
    with image:
        return image.need("url")


def _call(call: Fields) -> ToolCall:
    call_id = call.need("id")
    function = call.child("function")
    if function is None:
        call.unsupported("type", "should be function with a function")
    call.raw("type")
    call.raw("index")
    with function:
        given = function.raw("arguments")
        if isinstance(given, dict):
            return call_from(call_id, function.need("name"), given)
        text = function.text("arguments") or ""
        read = read_object(text)
        return call_from(call_id, function.need("name"), text if isinstance(read, str) else read)

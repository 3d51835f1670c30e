"""Requests for OpenAI's responses become the fields of `ModelCall`."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from rollart_flow.gateway.wires.base import answer_id_in
from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.conversation import (
    ConversationBuilder,
    HistoryPlace,
    call_from,
    image_of_url,
)
from rollart_flow.gateway.wires.reading import Fields, read_object
from rollart_flow.gateway.wires.responses_compaction import ASKS, is_compaction, summary_in
from rollart_flow.gateway.wires.responses_tools import SHELL, OfferedTools, flat_name
from rollart_flow.gateway.wires.settings import (
    CHANGES_DISTRIBUTION,
    refuse_format,
    refuse_given,
    sampling_of,
)
from rollart_flow.types import Action, ToolCall
from rollart_flow.types.messages import Part

_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_STATE = ("previous_response_id", "conversation", "prompt", "background")
_TEXTS = ("input_text", "output_text", "text", "refusal")
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_PASSED_OVER = (
    "web_search_call", "image_generation_call", "tool_search_call", "ghost_snapshot",
)  # fmt: skip
"""Items that clients keep in their history, and that no policy was shown."""


@dataclass(slots=True)
class _Draft:
    """An answer whose items are being read: thinking, then text, then calls."""

    stage: int = -1
    thinking: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    echoes: list[str] = field(default_factory=list)

    def copy(self) -> "_Draft":
        """Return the same answer, to which items can be added."""
        return replace(
            self, thinking=[*self.thinking], texts=[*self.texts], calls=[*self.calls],
            echoes=[*self.echoes],
        )  # fmt: skip


class _History(ConversationBuilder):
    """A conversation whose answers come as several items each, and that may bring tools."""

    def __init__(self) -> None:
        super().__init__()
        self._draft = _Draft()
        self.tools = OfferedTools()

    def place(self) -> HistoryPlace:
        return (*super().place(), self._draft.copy(), self.tools.copy())

    def at(self, place: HistoryPlace) -> Self:
        made = super().at(place)
        draft, tools = place[-2:]
        made._draft = cast("_Draft", draft).copy()
        made.tools = cast("OfferedTools", tools).copy()
        return made

    def drafted(self, stage: int, item: Fields) -> _Draft:
        """Return the answer that an item belongs to: a new one where the order begins again."""
        if stage < self._draft.stage or stage == self._draft.stage < 2:
            self.end_answer()
        self._draft.stage = stage
        self._draft.echoes.append(answer_id_in(item.text("id") or ""))
        return self._draft

    def end_answer(self) -> None:
        """Add the answer whose items have been read, if there is one."""
        draft, self._draft = self._draft, _Draft()
        if draft.stage >= 0:
            thinking = "\n\n".join(draft.thinking) or None
            action = Action("".join(draft.texts), thinking, tuple(draft.calls))
            self.assistant(action, draft.echoes)


def read_responses(target: str, body: BodyReader) -> dict[str, Any]:
    """Return the fields of a call; a request for a compaction asks for a summary at its end.

    Raises:
        CallRefusedError: the request cannot be read, or asks for what is not here.
    """
    dropped: set[str] = set()
    with body.fields(dropped) as fields:
        _refuse_state(fields)
        tools = OfferedTools()
        for tool in fields.children("tools"):
            tools.add(tool)
        opening = fields.text("instructions") or ""
        if isinstance(fields.raw("input"), str):
            history = _History()
            history.user([fields.need("input")])
        else:
            history = body.history(fields, "input", _History, _item)
        history.open(opening)
        history.end_answer()
        compacts = is_compaction(target)
        if compacts:
            history.user([ASKS])
        tools.extend(history.tools)
        tools.check(fields)
        found = {
            "messages": history.messages(),
            "echoes": history.echoes(),
            "tools": tuple(tools.functions) if _may_call(fields) else (),
            "model": fields.text("model") or "",
            "max_tokens": fields.count("max_output_tokens"),
            "sampling": _sampling(fields),
            "stream": fields.flag("stream") and not compacts,
            "reply": {**tools.reply(), **({"compacts": True} if compacts else {})},
        }
    return found | {"dropped": history.dropped(dropped)}


def _refuse_state(fields: Fields) -> None:
    for name in _STATE:
        if fields.raw(name) not in (None, False):
            fields.unsupported(name, "needs a store of responses; send the whole input")
    refuse_given(fields, ("logit_bias",))


def _sampling(fields: Fields) -> dict[str, Any]:
    found = sampling_of(fields, _NUMBERS)
    if (reasoning := fields.child("reasoning")) is not None:
        with reasoning:
            if (effort := reasoning.text("effort")) is not None:
                found["reasoning_effort"] = effort
    if (text := fields.child("text")) is not None:
        with text:
            refuse_format(text, "format", "format")
    return found


def _may_call(fields: Fields) -> bool:
    choice = fields.raw("tool_choice")
    if choice not in (None, "auto", "none"):
        fields.unsupported("tool_choice", f"should be auto or none: another {CHANGES_DISTRIBUTION}")
    return bool(choice != "none")


def _item(item: Fields, history: _History) -> None:
    kind = item.text("type") or "message"
    if kind == "message":
        _message(item, history)
    elif kind == "reasoning":
        _reasoning(item, history)
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        history.drafted(2, item).calls.append(_call(item, kind))
    elif kind in _RESULTS:
        history.end_answer()
        call_id = item.text("call_id")
        history.result(call_id or item.need("id"), [*_parts(item, "output")])
    elif kind in ("additional_tools", "tool_search_output"):
        for tool in item.children("tools"):
            history.tools.add(tool)
    elif kind == "compaction":
        history.end_answer()
        history.user([summary_in(item)])
    elif kind in _PASSED_OVER:
        item.withhold("type")
    else:
        item.unsupported("type", f"{kind!r} is not known here")


def _message(item: Fields, history: _History) -> None:
    role = item.one_of("role", ("user", "assistant", "system", "developer"))
    if role == "assistant":
        history.drafted(1, item).texts.append(_text(item))
        return
    history.end_answer()
    if role == "user":
        history.user([*_parts(item, "content")])
    else:
        history.system(_text(item))


def _reasoning(item: Fields, history: _History) -> None:
    draft = history.drafted(0, item)
    summary = [part.need("text") for part in item.children("summary") if part.need("type")]
    content = [part.need("text") for part in item.children("content") if part.need("type")]
    draft.thinking.extend(content or summary)
    draft.echoes.append(item.text("encrypted_content") or "")


def _call(item: Fields, kind: str) -> ToolCall:
    call_id = item.text("call_id") or item.need("id")
    item.text("status")
    if kind == "local_shell_call":
        action = {**(item.mapping("action") or {})}
        kept = {name: value for name, value in action.items() if name != "type"}
        given = {name: value for name, value in kept.items() if value is not None}
        return call_from(call_id, SHELL, given)
    name = flat_name(item.text("namespace"), item.need("name"))
    if kind == "custom_tool_call":
        return call_from(call_id, name, {"input": item.need("input")})
    text = item.text("arguments") or ""
    read = read_object(text)
    return call_from(call_id, name, text if isinstance(read, str) else read)


def _text(item: Fields) -> str:
    parts = [*_parts(item, "content")]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        item.wrong("content", "text, since only the user and tools show images")
    return "".join(texts)


def _parts(item: Fields, name: str) -> Iterator[Part]:
    if isinstance(item.raw(name), str):
        yield item.need(name)
        return
    for part in item.children(name):
        kind = part.need("type")
        if kind == "input_image":
            if "file_id" in part:
                part.unsupported("file_id", "names a file of the provider; send a data URL")
            yield image_of_url(part.need("image_url"), f"{part.place}.image_url")
        elif kind in _TEXTS:
            yield part.need("refusal" if kind == "refusal" else "text")
        else:
            part.unsupported("type", f"should be input_text or input_image, got {kind!r}")

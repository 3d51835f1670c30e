"""Requests for Google's content become the fields of `ModelCall`."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast
from urllib.parse import parse_qs, unquote

from rollart_flow.gateway.wires.bodies import BodyReader
from rollart_flow.gateway.wires.conversation import (
    ConversationBuilder,
    HistoryPlace,
    call_from,
    image_of_base64,
)
from rollart_flow.gateway.wires.events import NO_CONTENT, compact_json
from rollart_flow.gateway.wires.google_tools import may_call, read_tools
from rollart_flow.gateway.wires.reading import Fields, camel_case, refuse
from rollart_flow.gateway.wires.settings import (
    CHANGES_DISTRIBUTION,
    refuse_given,
    refuse_several,
    sampling_of,
)
from rollart_flow.types import Action, ToolCall
from rollart_flow.types.messages import Part

_TARGET = re.compile(r"/models/(.+):(\w+)$")
_NUMBERS = ("temperature", "topP", "topK", "presencePenalty", "frequencyPenalty", "seed")
_REFUSED = ("responseSchema", "responseJsonSchema", "_responseJsonSchema")
_TEXT_FORMATS = (None, "", "text/plain")
_RESULT_KEYS = ("output", "result")
"""Keys under which clients have the text of a tool."""


def read_google(target: str, body: BodyReader) -> dict[str, Any]:
    """Return the fields of a call.

    Args:
        target: path and query, which have the model and the form of the answer.
        body: the body of the request.

    Raises:
        CallRefusedError: the request cannot be read, or asks for what is not here.
    """
    path, _, query = target.partition("?")
    named = _TARGET.search(path)
    if named is None:
        refuse(f"{path} names no model and method")
    stream = named[2] == "streamGenerateContent"
    dropped: set[str] = set()
    with body.fields(dropped, camel=True) as given:
        inner = given.child("generateContentRequest")
        with inner or given as fields:
            found, history = _call(fields, body)
    reply = {"array": True} if stream and parse_qs(query).get("alt") != ["sse"] else {}
    return found | {
        "model": unquote(named[1]),
        "stream": stream,
        "reply": reply,
        "dropped": history.dropped(dropped),
    }


def packed_signature(signature: str) -> str:
    """Return a minted signature as the base64 that clients expect."""
    return base64.b64encode(signature.encode()).decode()


def _unpacked(signature: str) -> str:
    """Return the minted signature in one that a client sends back, or what it sent."""
    padded = signature.rstrip("=") + "=" * (-len(signature.rstrip("=")) % 4)
    try:
        return base64.urlsafe_b64decode(padded.replace("+", "-").replace("/", "_")).decode()
    except (binascii.Error, ValueError):
        return signature


def _call(fields: Fields, body: BodyReader) -> tuple[dict[str, Any], "_Turns"]:
    if "cachedContent" in fields:
        fields.unsupported("cachedContent", "names content of the provider; send all of it")
    fields.text("model")
    opening = _opening(fields)
    history = body.history(fields, "contents", _Turns, _content)
    history.open(opening)
    history.end_answer()
    tools = read_tools(fields)
    found = {
        "messages": history.messages(),
        "echoes": history.echoes(),
        "tools": tuple(tools) if may_call(fields) else (),
    }
    config = fields.child("generationConfig")
    return found | ({} if config is None else _settings(config)), history


def _opening(fields: Fields) -> str:
    instruction = fields.raw("systemInstruction")
    if isinstance(instruction, str):
        return instruction
    content = fields.child("systemInstruction")
    if content is None:
        return ""
    with content:
        content.text("role")
        return "".join(part.need("text") for part in content.children("parts"))


def _settings(config: Fields) -> dict[str, Any]:
    with config:
        refuse_several(config, "candidateCount")
        refuse_given(config, _REFUSED)
        if config.raw("responseMimeType") not in _TEXT_FORMATS:
            config.unsupported("responseMimeType", CHANGES_DISTRIBUTION)
        if config.raw("responseModalities") not in (None, [], ["TEXT"]):
            config.unsupported("responseModalities", "should be TEXT")
        sampling = sampling_of(config, _NUMBERS, stop="stopSequences")
        if (thinking := config.mapping("thinkingConfig")) is not None:
            sampling["thinkingConfig"] = {camel_case(key): thinking[key] for key in thinking}
        return {"sampling": sampling, "max_tokens": config.count("maxOutputTokens")}


@dataclass(slots=True)
class _Said:
    """An answer whose parts are being read: thoughts, then text, then calls."""

    stage: int = -1
    thinking: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    echoes: list[str] = field(default_factory=list)

    def copy(self) -> "_Said":
        """Return the same answer, to which parts can be added."""
        return replace(self, calls=[*self.calls], echoes=[*self.echoes])


class _Turns(ConversationBuilder):
    """A conversation whose answers may come as several contents, and whose calls may lack ids."""

    def __init__(self) -> None:
        super().__init__()
        self._said = _Said()
        self._open: dict[str, list[str]] = {}
        self._unnamed = 0

    def place(self) -> HistoryPlace:
        return (*super().place(), self._said.copy(), _waiting(self._open), self._unnamed)

    def at(self, place: HistoryPlace) -> Self:
        made = super().at(place)
        said, opened, unnamed = place[-3:]
        made._said = cast("_Said", said).copy()
        made._open = _waiting(cast("dict[str, list[str]]", opened))
        made._unnamed = cast("int", unnamed)
        return made

    def said(self, stage: int, part: Fields) -> _Said:
        """Return the answer that a part belongs to: a new one where the order begins again."""
        if stage < self._said.stage:
            self.end_answer()
        self._said.stage = stage
        self._said.echoes.append(_unpacked(part.text("thoughtSignature") or ""))
        return self._said

    def end_answer(self) -> None:
        """Add the answer whose parts have been read, if there is one."""
        said, self._said = self._said, _Said()
        if said.stage >= 0:
            text = "" if said.text == NO_CONTENT else said.text
            self.assistant(Action(text, said.thinking or None, tuple(said.calls)), said.echoes)

    def opened(self, call_id: str | None, name: str) -> str:
        """Return the id of a call, a new one if it has none."""
        if not call_id:
            call_id = f"g{self._unnamed:08d}"
            self._unnamed += 1
        self._open.setdefault(name, []).append(call_id)
        return call_id

    def closed(self, call_id: str | None, name: str) -> str:
        """Return the id of the call that a result is for, by name and order if it has none."""
        waiting = self._open.get(name, [])
        if call_id in waiting or (not call_id and waiting):
            call_id = call_id or waiting[0]
            waiting.remove(call_id)
        return call_id or ""


def _waiting(opened: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the calls that have no result yet, by name."""
    return {name: [*call_ids] for name, call_ids in opened.items() if call_ids}


def _content(content: Fields, history: _Turns) -> None:
    role = content.text("role") or "user"
    if role not in ("user", "model", "function"):
        content.wrong("role", "user, model or function")
    parts: list[Part] = []
    results = 0
    for part in content.children("parts"):
        if (response := part.child("functionResponse")) is not None:
            _flush(parts, history)
            results += 1
            _result(response, history)
        elif role == "model":
            _answered(part, history)
        else:
            parts.append(_shown(part))
    if parts or not (results or role == "model"):
        history.end_answer()
        history.user(parts)


def _flush(parts: list[Part], history: _Turns) -> None:
    history.end_answer()
    if parts:
        history.user(parts)
        parts.clear()


def _result(response: Fields, history: _Turns) -> None:
    with response:
        name = response.need("name")
        given = response.mapping("response") or {}
        call_id = history.closed(response.text("id"), name)
        images = [_shown(part) for part in response.children("parts")]
        history.result(call_id, [_result_text(given), *images], name)


def _result_text(response: Mapping[str, Any]) -> str:
    """Return the text that a tool answered; the JSON of an answer that is no text."""
    [key] = response if len(response) == 1 else ("",)
    value = response.get(key)
    return value if key in _RESULT_KEYS and isinstance(value, str) else compact_json(response)


def _answered(part: Fields, history: _Turns) -> None:
    if (called := part.child("functionCall")) is not None:
        with called:
            name = called.need("name")
            call_id = history.opened(called.text("id"), name)
            call = call_from(call_id, name, called.mapping("args") or {})
        history.said(2, part).calls.append(call)
    elif part.flag("thought"):
        history.said(0, part).thinking += part.need("text")
    else:
        history.said(1, part).text += part.text("text") or ""
        _check_kinds(part)


def _shown(part: Fields) -> Part:
    data = part.child("inlineData")
    if data is not None:
        with data:
            data.text("mimeType")
            return image_of_base64(data.need("data"), f"{data.place}.data")
    _check_kinds(part)
    return part.need("text")


def _check_kinds(part: Fields) -> None:
    for kind in ("fileData", "executableCode", "codeExecutionResult", "inlineData", "toolCall"):
        if kind in part:
            part.unsupported(kind, "is not read here; send text, or inlineData of the user")

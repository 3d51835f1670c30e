"""Messages in the form that a chat template reads."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollart_flow.models.chat.markers import unguarded
from rollart_flow.models.chat.template import Form
from rollart_flow.types import Message, Role, ToolCall
from rollart_flow.types.messages import Part

PROBE = "probe-of-an-action"
"""Text that stands for an action in renderings."""
QUESTION: Form = {"role": "user", "content": "probe-of-a-question"}
ANSWER: Form = {"role": "assistant", "content": PROBE}
_CALL = ToolCall("probe0001", "probe", {})
_NAMELESS = "unknown"
"""Name of a call that the policy wrote without any."""


@dataclass(frozen=True, slots=True)
class MessageForms:
    """The form in which a template expects its messages."""

    guard: Callable[[str], str]
    """Function that keeps a text from spelling a marker or the probe."""
    thinking: str
    """Key of the text that the assistant thinks."""
    as_text: bool = False
    """Whether the arguments of a call are JSON text, not an object."""
    absent: str | None = ""
    """Text of a message that only calls tools."""

    def of(self, message: Message) -> dict[str, Any]:
        """Return the form of a message."""
        form: dict[str, Any] = {"role": str(message.role), "content": self.guard(message.text)}
        if message.parts:
            form["content"] = [*map(self._part, message.parts)]
        if message.thinking is not None:
            form[self.thinking] = self.guard(message.thinking)
        if message.tool_calls:
            form["content"] = form["content"] or self.absent
            arguments = [_guarded(call.arguments, self.guard) for call in message.tool_calls]
            form["tool_calls"] = [*map(self._call, message.tool_calls, arguments)]
        if message.call_id is not None:
            form["tool_call_id"] = self.guard(message.call_id)
        if message.name is not None:
            form["name"] = self.guard(message.name)
        return form

    def probe(self, calls: Sequence[ToolCall] = (_CALL,)) -> dict[str, Any]:
        """Return a message of the assistant that makes calls; their arguments are the probe."""
        probes = [self._call(call, {"probe": PROBE}) for call in calls]
        return {"role": "assistant", "content": self.absent, "tool_calls": probes}

    def result(self) -> Form:
        """Return the answer to the call of `probe`."""
        return self.of(Message(Role.TOOL, "", call_id=_CALL.call_id, name=_CALL.name))

    def _part(self, part: Part) -> Form:
        if isinstance(part, str):
            return {"type": "text", "text": self.guard(part)}
        return {"type": "image"}

    def _call(self, call: ToolCall, arguments: object) -> dict[str, Any]:
        given = json.dumps(arguments, ensure_ascii=False) if self.as_text else arguments
        function = {"name": self.guard(call.name) or _NAMELESS, "arguments": given}
        return {"id": self.guard(call.call_id), "type": "function", "function": function}


def look_alike(one: Message, other: Message) -> bool:
    """Return whether a template may take two messages for equal, since their texts are."""
    return one.role is other.role and unguarded(one.text) == unguarded(other.text)


def calls_answered(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the calls that messages of tools answer, without their arguments."""
    return [
        ToolCall(message.call_id or _CALL.call_id, message.name or _NAMELESS, {})
        for message in messages
        if message.role is Role.TOOL
    ]


def _guarded(value: object, guard: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {guard(str(key)): _guarded(each, guard) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_guarded(each, guard) for each in value]
    return value

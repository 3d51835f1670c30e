"""Messages of a conversation: what an environment shows, and what a policy answers.

Messages have a JSON form, which crosses processes and is stored: that of the chat completions API,
with the arguments of a call as an object.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a policy may call."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """JSON Schema of the arguments, an object."""

    def as_json(self) -> dict[str, object]:
        """Return the form that chat templates take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as a policy wrote it."""

    call_id: str
    name: str
    arguments: Mapping[str, object]
    error: str | None = None
    """Why the call cannot be made, as one line; None for a well-formed call."""
    text: str = ""
    """Text of a call that is not well-formed."""

    def as_json(self) -> dict[str, object]:
        """Return the JSON form."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        form: dict[str, object] = {
            "id": self.call_id,
            "type": "function",
            "function": function,
        }
        if self.error is not None:
            form |= {"error": self.error, "text": self.text}
        return form


@dataclass(frozen=True, slots=True)
class Action:
    """The parsed tokens of one generation."""

    text: str
    thinking: str | None = None
    """Text that the policy thinks before it answers; None without any."""
    tool_calls: tuple[ToolCall, ...] = ()

    def as_message(self) -> "Message":
        """Return the action as a message of the assistant."""
        return Message(
            Role.ASSISTANT, self.text, thinking=self.thinking, tool_calls=self.tool_calls
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    text: str
    thinking: str | None = None
    """Of the assistant only."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of the assistant only."""
    call_id: str | None = None
    """Call that a message of a tool answers."""
    name: str | None = None
    """Tool that a message of a tool comes from."""

    def as_action(self) -> Action:
        """Return a message of the assistant as an action."""
        return Action(self.text, self.thinking, self.tool_calls)

    def as_json(self) -> dict[str, object]:
        """Return the JSON form, without what is absent."""
        form: dict[str, object] = {"role": str(self.role), "content": self.text}
        if self.thinking is not None:
            form["reasoning_content"] = self.thinking
        if self.tool_calls:
            form["tool_calls"] = [call.as_json() for call in self.tool_calls]
        if self.call_id is not None:
            form["tool_call_id"] = self.call_id
        if self.name is not None:
            form["name"] = self.name
        return form


Observation: TypeAlias = str | Sequence[Message]
"""What an environment shows: text, which is one message of the user, or messages."""


def system(text: str) -> Message:
    """Return a message of the system."""
    return Message(Role.SYSTEM, text)


def user(text: str) -> Message:
    """Return a message of the user."""
    return Message(Role.USER, text)


def tool_result(call: ToolCall, text: str) -> Message:
    """Return the answer of a tool to a call."""
    return Message(Role.TOOL, text, call_id=call.call_id, name=call.name)


def messages_of(observation: Observation) -> tuple[Message, ...]:
    """Return an observation as messages."""
    return (user(observation),) if isinstance(observation, str) else tuple(observation)


def turns_from_json(messages: str) -> list[tuple[tuple[Message, ...], Action | None]]:
    """Return (messages that were shown, action or None) of each turn of a stored conversation."""
    turns: list[tuple[tuple[Message, ...], Action | None]] = []
    for form in json.loads(messages):
        message = message_from_json(form)
        if form["turn"] == len(turns):
            turns.append(((), None))
        shown, action = turns[-1]
        if message.role is Role.ASSISTANT:
            turns[-1] = shown, message.as_action()
        else:
            turns[-1] = (*shown, message), action
    return turns


def messages_json(messages: Sequence[Message]) -> str:
    """Return messages as a JSON list."""
    forms = [message.as_json() for message in messages]
    return json.dumps(forms, ensure_ascii=False, separators=(",", ":"))


def message_from_json(form: Mapping[str, Any]) -> Message:
    """Return a message from its JSON form.

    Raises:
        ValueError, KeyError, TypeError: it is not a message; the text says why.
    """
    role, text = Role(form["role"]), form.get("content")
    thinking = form.get("reasoning_content")
    call_id, name = form.get("tool_call_id"), form.get("name")
    for key, value in (
        ("content", "" if text is None else text),
        ("reasoning_content", thinking or ""),
        ("tool_call_id", call_id or ""),
        ("name", name or ""),
    ):
        if not isinstance(value, str):
            raise TypeError(f"{key} is {type(value).__name__}, not text")
    calls = tuple(call_from_json(each) for each in form.get("tool_calls") or ())
    return Message(role, text or "", thinking, calls, call_id, name)


def call_from_json(form: Mapping[str, Any]) -> ToolCall:
    """Return a tool call from its JSON form.

    Raises:
        ValueError, KeyError, TypeError: it is not a call.
    """
    function = form["function"]
    arguments = function.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        raise TypeError(f"arguments are {type(arguments).__name__}, not an object")
    return ToolCall(
        str(form["id"]), str(function["name"]), arguments, form.get("error"), form.get("text", "")
    )


def tool_from_json(form: Mapping[str, Any]) -> Tool:
    """Return a tool from its JSON form.

    Raises:
        KeyError, TypeError: it is not a tool.
    """
    function = form["function"]
    return Tool(function["name"], function["description"], function["parameters"])

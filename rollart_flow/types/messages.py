"""Messages of a conversation: what an environment shows, and what a policy answers.

Messages have a JSON form, which crosses processes and is stored: that of the chat completions API,
with the arguments of a call as an object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


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

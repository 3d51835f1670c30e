"""Messages of a conversation: what an environment shows, and what a policy answers.

Messages have a JSON form, which crosses processes and is stored: that of the chat completions API,
with the arguments of a call as an object.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeAlias

from rollart_flow.types.images import Image


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


Part: TypeAlias = str | Image
"""A part of a message."""
NO_IMAGES: Mapping[str, Image] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Role
    text: str
    """The text, without images."""
    thinking: str | None = None
    """Text that the assistant wrote as its thinking; None in messages of other roles."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls that the assistant made; empty in messages of other roles."""
    call_id: str | None = None
    """Call that a message of a tool answers."""
    name: str | None = None
    """Tool that a message of a tool comes from."""
    parts: tuple[Part, ...] = ()
    """Text and images in their order; empty for a message without images, which is `text`."""

    @property
    def images(self) -> tuple[Image, ...]:
        """The images in their order."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    @property
    def shown(self) -> str:
        """The text, with the names of images in their places."""
        if not self.parts:
            return self.text
        names = (p if isinstance(p, str) else f"[image {p.image_id[:12]}]" for p in self.parts)
        return "".join(names)

    def as_action(self) -> Action:
        """Return a message of the assistant as an action."""
        return Action(self.text, self.thinking, self.tool_calls)

    def as_json(self) -> dict[str, object]:
        """Return the JSON form, without what is absent."""
        content = [*map(_part_json, self.parts)] if self.parts else self.text
        form: dict[str, object] = {"role": str(self.role), "content": content}
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
"""Observation of an environment: text, which is one message of the user, or messages."""


def system(text: str) -> Message:
    """Return a message of the system."""
    return Message(Role.SYSTEM, text)


def user(*parts: Part) -> Message:
    """Return a message of the user, of text and images."""
    text, mixed = _text_and_parts(parts)
    return Message(Role.USER, text, parts=mixed)


def tool_result(call: ToolCall, *parts: Part) -> Message:
    """Return the answer of a tool to a call."""
    text, mixed = _text_and_parts(parts)
    return Message(Role.TOOL, text, call_id=call.call_id, name=call.name, parts=mixed)


def _text_and_parts(parts: Sequence[Part]) -> tuple[str, tuple[Part, ...]]:
    """Return the text of parts, and the parts unless all of them are text."""
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts), () if len(texts) == len(parts) else tuple(parts)


def _part_json(part: Part) -> dict[str, object]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Image):
        raise TypeError(f"a part is {type(part).__name__}, neither text nor an image")
    return {"type": "image_url", "image_url": {"url": part.url}}


def _part_from_json(form: Any, known: Mapping[str, Image]) -> Part:
    if isinstance(form, str):
        return form
    if form["type"] == "text":
        if not isinstance(form["text"], str):
            raise TypeError(f"text of a part is {type(form['text']).__name__}")
        return form["text"]
    if form["type"] != "image_url":
        raise ValueError(f"a part is {form['type']!r}, neither text nor image_url")
    image = Image.from_url(form["image_url"]["url"])
    return known.get(image.image_id, image)


def messages_of(observation: Observation) -> tuple[Message, ...]:
    """Return an observation as messages."""
    return (user(observation),) if isinstance(observation, str) else tuple(observation)


def text_of(observation: Observation) -> str:
    """Return an observation as the text that the column `turns` holds."""
    if isinstance(observation, str):
        return observation
    return "\n".join(f"{message.role}: {message.shown}" for message in observation)


def images_of(observation: Observation) -> tuple[Image, ...]:
    """Return the images of an observation in their order."""
    if isinstance(observation, str):
        return ()
    return tuple(image for message in observation for image in message.images)


def messages_json(messages: Sequence[Message]) -> str:
    """Return messages as a JSON list."""
    forms = [message.as_json() for message in messages]
    return json.dumps(forms, ensure_ascii=False, separators=(",", ":"))


def message_from_json(form: Mapping[str, Any], known: Mapping[str, Image] = NO_IMAGES) -> Message:
    """Return a message from its JSON form.

    Args:
        form: the JSON form.
        known: images with their files, by name; other images are known by their names alone.

    Raises:
        ValueError, KeyError, TypeError: it is not a message; the text says why.
        EnvironmentFailedError: a data URL in it has no image.
    """
    role, text = Role(form["role"]), form.get("content")
    parts: tuple[Part, ...] = ()
    if isinstance(text, list | tuple):
        text, parts = _text_and_parts([_part_from_json(part, known) for part in text])
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
    return Message(role, text or "", thinking, calls, call_id, name, parts)


def message_with_files(message: Message) -> dict[str, object]:
    """Return the JSON form of a message in which images have their files, as data URLs."""
    form = message.as_json()
    if message.images:
        form["content"] = [
            _part_json(part)
            if isinstance(part, str)
            else {"type": "image_url", "image_url": {"url": part.data_url}}
            for part in message.parts
        ]
    return form


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

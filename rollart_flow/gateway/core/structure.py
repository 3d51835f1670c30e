"""Structure of messages: what stays the same when a client sends its conversation again.

Clients change what carries no meaning: white space at the ends of texts, ids, thinking, counters
in prompts. Two messages with equal shapes are the same message.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rollart_flow.types import Action, Message, Role, ToolCall

_VOLATILE = (
    ("x-anthropic-billing-header", re.compile(r"x-anthropic-billing-header:[^\n]*\n*"), ""),
    ("tokens left", re.compile(r"<total_tokens>\s*[\d,]+ tokens left"), "<total_tokens>"),
)
"""Spans that change from call to call: a text that tells where one may be, its pattern, and what
stands for it."""
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_CODE_END = "</code>"
_CODE_AGAIN = re.compile(
    r"(?:\s*</code>)?(?:\s*Calling tools:\s*\[\{'id': 'call_\d+', .*\}\])?\Z", re.DOTALL
)
"""Text that smolagents adds to an answer that it had stop at the end of its code: the mark of the
end, and the code once more as a call."""

Said: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""Shape of an answer: its text, and the name and arguments of each call."""
Shape: TypeAlias = tuple[str, Said, tuple[str, ...]]
"""Shape of a message: its role, what it says, and the names of its images."""


class Shapes:
    """Shapes of the messages of a call, each of which is made when it is asked for.

    An answer that is known by its ids needs none.
    """

    __slots__ = ("_made", "_messages")

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._made: list[Shape | None] = [None] * len(messages)

    def __len__(self) -> int:
        """Number of messages."""
        return len(self._messages)

    def at(self, index: int) -> Shape:
        """Return the shape of a message."""
        made = self._made[index]
        if made is None:
            made = self._made[index] = shape_of(self._messages[index])
        return made

    def between(self, start: int, end: int) -> tuple[Shape, ...]:
        """Return the shapes of the messages from `start` on, before `end`."""
        return tuple(map(self.at, range(start, end)))


def shape_of(message: Message) -> Shape:
    """Return the shape of a message."""
    images = tuple(image.image_id for image in message.images) if message.parts else ()
    if message.role is Role.ASSISTANT:
        return (message.role, said_in(message), images)
    return (message.role, (_steady(message.text), ()), images)


def said_in(message: Message | Action) -> Said:
    """Return the shape of an answer, without its thinking and the ids of its calls."""
    text = message.text.strip()
    if text.startswith("<think>"):
        text = _THOUGHT.sub("", text, count=1).strip()
    if _CODE_END in text:
        text = _CODE_AGAIN.sub("", text, count=1).strip()
    return text, tuple(map(_call, message.tool_calls))


def same_said(one: Said, other: Said) -> bool:
    """Return whether two answers are the same but for white space."""
    return one == other or (one[1] == other[1] and one[0].split() == other[0].split())


def same_thinking(one: str | None, other: str | None) -> bool:
    """Return whether two thoughts are the same but for white space."""
    return (one or "").split() == (other or "").split()


def flattened(text: str, said: Said, call_ids: Sequence[str]) -> bool:
    """Return whether a text is an answer with calls that a client has written as text.

    The text has the id of each call, or all that the answer says: its text, and the names of the
    calls with their arguments.
    """
    if call_ids and all(call_id in text for call_id in call_ids):
        return True
    spoken, calls = said
    return bool(calls) and spoken in text and all(_written(call, text) for call in calls)


def canonical_json(value: object) -> str:
    """Return the JSON text that equal values have in common."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _call(call: ToolCall) -> tuple[str, str]:
    if call.error is not None:
        return call.name, call.text.strip()
    return call.name, canonical_json(dict(call.arguments)) if call.arguments else "{}"


def _written(call: tuple[str, str], text: str) -> bool:
    """Return whether a text has the name and each argument of a call."""
    name, arguments = call
    if name not in text:
        return False
    try:
        values = json.loads(arguments)
    except ValueError:
        return arguments in text
    if not isinstance(values, Mapping):
        return False
    return all(key in text and _shown(value, text) for key, value in values.items())


def _shown(value: object, text: str) -> bool:
    """Return whether a text shows an argument, as Python or JSON writes it."""
    written = str(value), repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False)
    return any(form in text for form in written)


def _steady(text: str) -> str:
    """Return a text without what changes from call to call."""
    for sign, pattern, stands in _VOLATILE:
        if sign in text:
            text = pattern.sub(stands, text)
    return text.strip()

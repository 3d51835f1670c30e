"""Spans that a client changes with every call, such as the time of day in its system prompt.

A prompt that changes at its begin has no token in common with the one before: each call would begin
a branch, and gateway and engine would read the whole history again. What a run declares as volatile
is left out of what comes before a conversation's first answer, so that the policy never sees it.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from rollart_flow.errors import SettingsError
from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.types import Message, Role

DROPPED = "opening.volatile"
"""Name of such spans among the fields of a request that have no effect."""


class VolatileSpans:
    """The volatile spans of a session.

    Args:
        patterns: regular expressions, each of which finds a span.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [*map(compiled, patterns)]
        self._last: Sequence[Message] = ()
        """The opening of the last call, whose messages stand for equal ones."""

    def without(self, call: ModelCall) -> ModelCall:
        """Return a call without the spans in the messages before the first answer."""
        if not self._patterns:
            return call
        before = takewhile(lambda message: message.role is not Role.ASSISTANT, call.messages)
        opening = [*map(self._steady, before)]
        if all(map(lambda one, other: one is other, opening, call.messages)):
            return call
        for index, (one, other) in enumerate(zip(opening, self._last, strict=False)):
            if one == other:
                opening[index] = other
        self._last = opening
        messages = (*opening, *call.messages[len(opening) :])
        return replace(call, messages=messages, dropped=tuple(sorted({*call.dropped, DROPPED})))

    def _steady(self, message: Message) -> Message:
        parts = tuple(self._cut(p) if isinstance(p, str) else p for p in message.parts)
        text = self._cut(message.text)
        same = text == message.text and parts == message.parts
        return message if same else replace(message, text=text, parts=parts)

    def _cut(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub("", text)
        return text


def compiled(pattern: str) -> "re.Pattern[str]":
    """Return a pattern of volatile spans.

    Raises:
        SettingsError: it is no regular expression, or finds spans without a character.
    """
    try:
        found = re.compile(pattern)
    except re.error as error:
        said = f"volatile {pattern!r} is no regular expression: {error}"
        raise SettingsError(said) from None
    if found.search(""):
        raise SettingsError(f"volatile {pattern!r} finds an empty text; let it find what changes")
    return found

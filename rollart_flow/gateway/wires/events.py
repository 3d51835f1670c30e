"""The neutral events of an answer, from which a wire makes both its JSON and its stream.

An answer is a sequence of blocks: thinking, text, calls. Each begins, comes in a few pieces, and
ends; an end has the whole block, so that a wire's JSON is made from the ends alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rollart_flow.gateway.core.calls import ModelAnswer
from rollart_flow.text import storable
from rollart_flow.types import ToolCall

_PIECES = 8
"""Most pieces of a block."""
_SHORTEST_PIECE = 16
"""Fewest characters of a piece that is not the last."""

MALFORMED = "malformed_call"
"""Name of a call that has none, and the only argument of one that is not well-formed."""
NO_CONTENT = "(no content)"
"""Text that stands for an empty answer: clients put it there themselves, or take no empty one."""


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    """Text that the policy thinks before it answers."""

    text: str
    signature: str


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBlock:
    """A call of a tool."""

    call: ToolCall

    @property
    def name(self) -> str:
        """Name of the tool; `MALFORMED` if the policy wrote none."""
        return storable(self.call.name) or MALFORMED

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments; the text under `MALFORMED` if the call is not well-formed."""
        if self.call.error is not None:
            return {MALFORMED: storable(self.call.text)}
        arguments = dict(self.call.arguments)
        try:
            json.dumps(arguments, allow_nan=False)
        except ValueError:  # an infinity, which a policy may write as 1e999
            return {MALFORMED: storable(compact_json(arguments))}
        return arguments

    @property
    def text(self) -> str:
        """The arguments as JSON, `{}` for none."""
        return storable(compact_json(self.arguments))


AnswerBlock: TypeAlias = ThinkingBlock | TextBlock | CallBlock


@dataclass(frozen=True, slots=True)
class BlockBegins:
    """The begin of a block."""

    index: int
    block: AnswerBlock


@dataclass(frozen=True, slots=True)
class BlockPiece:
    """A piece of a block's text; the arguments of a call as JSON are its text."""

    index: int
    block: AnswerBlock
    text: str


@dataclass(frozen=True, slots=True)
class BlockEnds:
    """The end of a block, which is whole."""

    index: int
    block: AnswerBlock


AnswerEvent: TypeAlias = BlockBegins | BlockPiece | BlockEnds


def events_of(answer: ModelAnswer) -> Iterator[AnswerEvent]:
    """Yield the events of an answer in order; an answer without calls has one block of text."""
    for index, block in enumerate(_blocks(answer)):
        yield BlockBegins(index, block)
        for piece in _pieces(block.text):
            yield BlockPiece(index, block, piece)
        yield BlockEnds(index, block)


def blocks_of(answer: ModelAnswer) -> list[AnswerBlock]:
    """Return the blocks of an answer, which are those that its events end with."""
    return [event.block for event in events_of(answer) if isinstance(event, BlockEnds)]


def compact_json(value: object) -> str:
    """Return the JSON text of a value, on one line and without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_bytes(value: object) -> bytes:
    """Return a value as JSON in UTF-8; half a surrogate pair becomes U+FFFD."""
    return storable(compact_json(value)).encode()


def _blocks(answer: ModelAnswer) -> Iterator[AnswerBlock]:
    action = answer.action
    if action.thinking:
        yield ThinkingBlock(storable(action.thinking), answer.signature)
    if action.text or not action.tool_calls:
        yield TextBlock(storable(action.text))
    for call in action.tool_calls:
        yield CallBlock(call)


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces; none for an empty one."""
    size = max(_SHORTEST_PIECE, -(-len(text) // _PIECES))
    yield from (text[start : start + size] for start in range(0, len(text), size))

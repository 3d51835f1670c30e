"""Another parser tried on the answers of stored calls, beside the one that a session uses.

The session goes on with what its own parser says, so that a difference has no consequences and all
calls of an attempt are compared.
"""

from collections.abc import Callable, Sequence

from rollart_flow.control.environment import Retold
from rollart_flow.models.chat.codec import TextCodec
from rollart_flow.models.chat.conversation import TemplateConversation
from rollart_flow.models.chat.formats import ChatFormat, ParsedText
from rollart_flow.types import Action, Observation, Tool
from rollart_flow.types.token_ids import TokenIds

Parsed = Callable[[tuple[int, ...], ParsedText, ParsedText], None]
"""Function that gets the tokens of an answer, and what both parsers say."""


class TriedCodec:
    """A codec that also parses each answer in another format; a `control.environment.ChatCodec`.

    Args:
        codec: the codec.
        chat_format: the other format.
        parsed: told of each answer.
    """

    def __init__(self, codec: TextCodec, chat_format: ChatFormat, parsed: Parsed) -> None:
        self._codec = codec
        self._format = chat_format
        self._parsed = parsed
        self.branches_history = codec.branches_history

    def encode_observation(self, text: str, *, first: bool, ended: bool = True) -> tuple[int, ...]:
        return self._codec.encode_observation(text, first=first, ended=ended)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(token_ids)

    def converse(self, tools: Sequence[Tool] = ()) -> "TriedConversation":
        return TriedConversation(self._codec.converse(tools), self._format, self._parsed)


class TriedConversation:
    """A conversation of `TriedCodec`; a `control.environment.Conversation`."""

    def __init__(
        self, inner: TemplateConversation, chat_format: ChatFormat, parsed: Parsed
    ) -> None:
        self._inner = inner
        self._format = chat_format
        self._parsed = parsed

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        return self._inner.observe(observation, ended=ended)

    def act(self, token_ids: Sequence[int]) -> Action:
        ours, other = self._inner.parse(token_ids), self._inner.parse(token_ids, self._format)
        self._parsed(tuple(token_ids), ours, other)
        return self._inner.act(token_ids)

    def retold(self, observation: Observation, token_ids: TokenIds) -> Retold | None:
        found = self._inner.retold(observation, token_ids)
        if found is None:
            return None
        assert isinstance(found.conversation, TemplateConversation)
        again = TriedConversation(found.conversation, self._format, self._parsed)
        return Retold(again, found.tokens, found.shared)

    def rewritten_at(self, token_ids: Sequence[int]) -> int | None:
        return self._inner.rewritten_at(token_ids)

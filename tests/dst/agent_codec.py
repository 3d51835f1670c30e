"""A chat codec with one token for each letter: the conversations of simulated programs."""

from collections.abc import Sequence

from rollart_flow.control.environment import Retold
from rollart_flow.types import Action, Message, Observation, Tool, ToolCall
from rollart_flow.types.messages import messages_of
from rollart_flow.types.token_ids import TokenIds
from tests.dst.environments import LetterCodec

_ENDED = 1
"""The token of the end of a turn that no stop token ended."""
_CALLS = "abcdefghijklm"
"""First letters of answers that call a tool."""


class LetterChat(LetterCodec):
    """Messages are their roles and texts; an answer of the first half of the alphabet is a call."""

    branches_history = False

    def converse(self, tools: Sequence[Tool] = ()) -> "LetterConversation":
        return LetterConversation(self)


class LetterConversation:
    """Implements `Conversation`; nothing is ever rendered again."""

    def __init__(self, codec: LetterChat) -> None:
        self._codec = codec
        self._calls = 0

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        shown = [f"<{each.role[0]}{each.text}{_called(each)}" for each in messages_of(observation)]
        letters = self._codec.encode_observation("".join([*shown, ">"]), first=True)
        return letters if ended else (_ENDED, *letters)

    def act(self, token_ids: Sequence[int]) -> Action:
        text = self._codec.decode(token_ids)
        if not text or text[0] not in _CALLS:
            return Action(text)
        self._calls += 1
        call = ToolCall(f"letters{self._calls:02d}", "add", {"a": text})
        return Action("", tool_calls=(call,))

    def retold(self, observation: Observation, token_ids: TokenIds) -> Retold | None:
        raise NotImplementedError("a codec without `branches_history` renders nothing again")

    def rewritten_at(self, token_ids: Sequence[int]) -> int | None:
        return None


def _called(message: Message) -> str:
    return "".join(str(call.arguments.get("a", "")) for call in message.tool_calls)

"""A chat codec with one token for each letter, whose template drops what was thought earlier."""

from collections.abc import Sequence

from rollart_flow.control.environment import Conversation, Retold
from rollart_flow.errors import TemplateRefusedError
from rollart_flow.types import Action, Message, Observation, Role, Tool, ToolCall
from rollart_flow.types.messages import messages_of
from rollart_flow.types.token_ids import TokenBuffer, TokenIds
from tests.dst.dialogue_plans import DialoguePlan
from tests.dst.environments import LetterCodec
from tests.dst.plans import STOP

_THOUGHTS, _CALLS = "uvwxyz", "abcdefgh"
"""First letters of answers: those of thoughts, which have one letter, and those of calls."""
_WITHOUT_TOOL, _MALFORMED = "g", "h"
"""First letters of calls that cannot be made."""
_END = chr(STOP)


class DialogueCodec(LetterCodec):
    """Messages are their roles and texts. A `ChatCodec`."""

    def __init__(self, plan: DialoguePlan) -> None:
        self._longest = plan.longest
        self.branches_history = plan.branches_history

    def converse(self, tools: Sequence[Tool] = ()) -> "DialogueConversation":
        """Begin a conversation."""
        return DialogueConversation(tuple(tool.name for tool in tools), self._longest)


class DialogueConversation:
    """Implements `Conversation`; the template keeps thoughts after the last message of the user.

    Args:
        names: tools that may be called.
        longest: most messages that are rendered again.
    """

    def __init__(self, names: tuple[str, ...], longest: int) -> None:
        self._names = names
        self._longest = longest
        self._messages: list[Message] = []
        self._call_ids: set[str] = set()

    def observe(self, observation: Observation, *, ended: bool = True) -> tuple[int, ...]:
        new = messages_of(observation)
        between = "" if ended or not self._messages else _END
        if any(each.role is Role.SYSTEM for each in [*self._messages, *new][1:]):
            raise TemplateRefusedError("a message of the system is not the first")
        self._add(new)
        return _tokens(f"{between}{_rendered(new)}>")

    def act(self, token_ids: Sequence[int]) -> Action:
        text = "".join(chr(token) for token in token_ids if token != STOP)
        thinking = text[0] if text and text[0] in _THOUGHTS else None
        answer = text if thinking is None else text[1:]
        calls: tuple[ToolCall, ...] = ()
        if self._names and answer and answer[0] in _CALLS:
            calls = tuple(self._call(answer, letter) for letter in answer[:2] if letter in _CALLS)
        action = Action("" if calls else answer, thinking, calls)
        self._add((action.as_message(),))
        return action

    def retold(self, observation: Observation, token_ids: TokenIds) -> Retold | None:
        again = DialogueConversation(self._names, self._longest)
        messages = (*self._messages, *messages_of(observation))
        if len(messages) > self._longest:
            raise TemplateRefusedError(f"over {self._longest} messages")
        return retold(again, again.observe(messages), token_ids)

    def rewritten_at(self, token_ids: Sequence[int]) -> int | None:
        if len(self._messages) > self._longest:
            return 0
        asks = self._messages[-1].role is not Role.ASSISTANT
        again = _tokens(_rendered(self._messages) + (">" if asks else ""))
        pairs = enumerate(zip(token_ids, again, strict=False))
        at = next((at for at, (old, new) in pairs if old != new), min(len(token_ids), len(again)))
        return None if at == len(token_ids) else at

    def _add(self, messages: Sequence[Message]) -> None:
        self._messages += messages
        self._call_ids.update(call.call_id for each in messages for call in each.tool_calls)

    def _call(self, answer: str, letter: str) -> ToolCall:
        number = len(self._call_ids)
        while (call_id := f"letters{number:02d}") in self._call_ids:
            number += 1
        self._call_ids.add(call_id)
        if letter == _MALFORMED:
            return ToolCall(call_id, "", {"a": answer}, "no call", answer)
        name = self._names[ord(letter) % len(self._names)]
        name = "other" if letter == _WITHOUT_TOOL else name
        return ToolCall(call_id, name, {"a": answer, "text": answer})


def retold(conversation: Conversation, whole: tuple[int, ...], chain: TokenIds) -> Retold | None:
    """What `Conversation.retold` returns of the tokens of all messages."""
    rendered = TokenIds.of(whole)
    shared = rendered.common(chain)
    if shared == len(chain):
        return None
    return Retold(conversation, TokenBuffer(rendered), shared)


def _rendered(messages: Sequence[Message]) -> str:
    """The text of messages, without the thoughts before the last message of the user."""
    users = [at for at, each in enumerate(messages) if each.role is Role.USER]
    last = users[-1] if users else -1
    return "".join(_shown(each, thinks=at > last) for at, each in enumerate(messages))


def _shown(message: Message, *, thinks: bool) -> str:
    if message.role is not Role.ASSISTANT:
        return f"<{message.role[0]}{message.text}"
    called = str(message.tool_calls[0].arguments["a"]) if message.tool_calls else ""
    thought = message.thinking or "" if thinks else ""
    return f">{thought}{message.text}{called}{_END}"


def _tokens(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))

"""Heads: tokens of a conversation's first messages, which later renderings begin with.

The invariant: a head is used only where the whole conversation is rendered with its tokens, by the
rule that was found out for the template.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from rollart_flow.models.chat.forms import look_alike
from rollart_flow.types import Message, Role
from rollart_flow.types.token_ids import TokenIds


class HeadRule(Enum):
    """When the tokens of a conversation's first messages hold for the next rendering."""

    ALWAYS = auto()
    ONCE = auto()
    """If the last question of the user is none that they have, too. The template of
    Mistral-7B-v0.3 shows the tools before each message that equals the last one."""
    NEVER = auto()


@dataclass(frozen=True, slots=True)
class Head:
    """The first messages, up to the marker at the end of the last one, an action."""

    messages: int
    """Number of messages; the next one is what the environment showed after the action."""
    token_ids: TokenIds
    """Their tokens."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one conversation."""

    settled: Head | None = None
    """Head before a question of the user."""
    newest: Head | None = None
    """Head before the last observation."""
    seen: int = 0
    """Number of messages that were rendered with `newest`."""

    def of(self, messages: Sequence[Message], rule: HeadRule) -> Head | None:
        """Return the longest head that holds for a conversation that has become longer."""
        if all(map(goes_on, messages[self.seen :])):
            return self.newest
        head = self.settled
        if head is None or rule is HeadRule.ALWAYS or not repeats(messages, head.messages):
            return head
        return None


@dataclass(frozen=True, slots=True)
class NewHead:
    """A head that a rendering begins with."""

    messages: int
    """Number of its messages."""
    length: int
    """Number of its tokens."""
    settled: bool
    """Whether it holds before another question, too."""
    seen: int
    """Number of messages that were rendered."""


NO_HEADS = Heads()


def goes_on(message: Message) -> bool:
    """Return whether the turns since the last question stay as they are before a message.

    Templates drop their thinking before a question, that of gpt-oss also before a final answer.
    """
    return message.role is Role.TOOL or bool(message.tool_calls)


def repeats(messages: Sequence[Message], count: int) -> bool:
    """Return whether the last question looks like one of the first messages, or is one of them."""
    asked = next((each for each in reversed(messages) if _asks(each)), None)
    return asked is not None and any(
        _asks(each) and look_alike(each, asked) for each in islice(messages, count)
    )


def _asks(message: Message) -> bool:
    return message.role is Role.USER

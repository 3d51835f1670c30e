"""Whole conversations, rendered again before each turn at the cost of the new messages.

A template may change earlier turns when a question follows them, but it seldom changes them twice.
`HistoryRenderer` keeps the tokens of the messages before the last turns as a `Head`, and renders
only what follows it, after one short turn in place of the head. A head before answers of tools
holds while calls go on, a head before a question always.

The invariant: the tokens are those that rendering the whole conversation gives. When heads hold is
found out by rendering a probe conversation in both ways; where none holds, all is rendered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rollart_flow.errors import TemplateRefusedError
from rollart_flow.models.chat.heads import (
    NO_HEADS,
    Head,
    HeadRule,
    Heads,
    NewHead,
    goes_on,
    repeats,
)
from rollart_flow.models.chat.renderer import TurnRenderer
from rollart_flow.models.chat.template import Form
from rollart_flow.types import Message, Role, ToolCall
from rollart_flow.types.messages import tool_result
from rollart_flow.types.token_ids import NO_TOKENS, TokenBuffer, TokenIds, common_tokens

_CALL = ToolCall("probe0002", "probe", {"of": "a call"})


Expand = Callable[[tuple[int, ...], Sequence[Message]], tuple[int, ...]]
"""Function that gives the images of messages their places among the messages' tokens."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """The tokens of a whole conversation: those of its head, and what follows them."""

    head: TokenIds
    rest: tuple[int, ...]
    thinking: bool
    """Whether the prompt for the action opens its thinking."""
    made: NewHead | None = None
    """Head for the next time; None if the former ones hold on."""

    def common(self, chain: TokenIds) -> int:
        """Return the number of leading tokens that are those of a chain.

        The cost is that of the rest if the head was read from the chain's buffer.
        """
        start = self.head.common(chain)
        if start < len(self.head):
            return start
        return start + common_tokens(self.rest, chain[start : start + len(self.rest)])

    def joined(self) -> TokenBuffer:
        """Return all tokens in a buffer of their own."""
        tokens = TokenBuffer(self.head)
        tokens.extend(self.rest)
        return tokens

    def heads_after(self, heads: Heads, token_ids: TokenIds) -> Heads:
        """Return the heads for the next time.

        Args:
            heads: those that this rendering began with.
            token_ids: the tokens of the rendering, or a chain with which they begin.
        """
        made, settled = self.made, heads.settled
        if made is None:
            return heads
        if len(token_ids) < made.length:  # the template ends actions with more text
            token_ids = self.joined().read()
        newest = Head(made.messages, token_ids.prefix(made.length))
        if made.settled:
            settled = newest
        elif settled is not None and settled.token_ids.common(self.head) == len(settled.token_ids):
            settled = Head(settled.messages, token_ids.prefix(len(settled.token_ids)))
        return Heads(settled, newest, made.seen)


class HistoryRenderer:
    """Renders conversations of one template and the same tools.

    Args:
        renderer: renderer of the template.
        tools: functions that the policy may call.
        expand: gives images their places.
    """

    def __init__(self, renderer: TurnRenderer, tools: Sequence[Form], expand: Expand) -> None:
        self._renderer = renderer
        self._tools = tools
        self._expand = expand

    def render(
        self, messages: Sequence[Message], heads: Heads = NO_HEADS, *, prompt: bool = True
    ) -> Rendering:
        """Return the tokens of a whole conversation.

        Args:
            messages: the messages, at least one.
            heads: those of an earlier beginning of the conversation.
            prompt: whether the prompt for an action follows.

        Raises:
            TemplateRefusedError: the template refuses the messages.
        """
        system = messages[0] if messages[0].role is Role.SYSTEM else None
        kind, known = (system is not None, bool(self._tools)), self._renderer.head_rules
        if kind not in known:
            agree = (
                rule for rule in (HeadRule.ALWAYS, HeadRule.ONCE) if self._agrees(system, rule)
            )
            known[kind] = next(agree, HeadRule.NEVER)
        if known[kind] is HeadRule.NEVER:
            return self._whole(messages, prompt=prompt)
        return self._render(messages, heads, known[kind], prompt=prompt)

    def _render(
        self, messages: Sequence[Message], heads: Heads, rule: HeadRule, *, prompt: bool
    ) -> Rendering:
        head = heads.of(messages, rule)
        if head is None:
            found = self._whole(messages, prompt=prompt)
        else:
            rest, thinking = self._after(messages, head.messages, prompt=prompt)
            found = Rendering(head.token_ids, rest, thinking)
        last = next((n for n in range(len(messages), 0, -1) if _acts(messages[n - 1])), 0)
        if not prompt or not last or last == len(messages):
            return found
        tail, _ = self._after(messages, last, prompt=True)
        if found.rest[-len(tail) :] != tail:
            return found
        length = len(found.head) + len(found.rest) - len(tail)
        settled = not all(map(goes_on, messages[last:])) and (
            rule is HeadRule.ALWAYS or not repeats(messages, last)
        )
        return replace(found, made=NewHead(last, length, settled, len(messages)))

    def _whole(self, messages: Sequence[Message], *, prompt: bool) -> Rendering:
        found = self._renderer.all(messages, self._tools, prompt=prompt)
        token_ids = self._expand(found.token_ids, messages)
        return Rendering(NO_TOKENS, token_ids, found.thinking)

    def _after(
        self, messages: Sequence[Message], start: int, *, prompt: bool
    ) -> tuple[tuple[int, ...], bool]:
        found = self._renderer.after(messages, start, self._tools, prompt=prompt)
        return self._expand(found.token_ids, messages[start:]), found.thinking

    def _agrees(self, system: Message | None, rule: HeadRule) -> bool:
        """Return whether a probe conversation has the same tokens with heads and without."""
        said = [] if system is None else [system]
        heads = NO_HEADS
        try:
            for observation, action in _probe(with_calls=bool(self._tools)):
                said += observation
                found = self._render(said, heads, rule, prompt=True)
                if not _agree(found, self._whole(said, prompt=True)):
                    return False
                heads = found.heads_after(heads, found.joined().read())
                said.append(action)
                found = self._render(said, heads, rule, prompt=False)
                if not _agree(found, self._whole(said, prompt=False)):
                    return False
        except TemplateRefusedError:
            return False
        return heads.settled is not None


def _probe(*, with_calls: bool) -> list[tuple[list[Message], Message]]:
    """Return observations, and the action after each.

    Messages repeat, since some templates compare them: that of Mistral-7B-v0.3 shows the tools
    before each message that equals the last one.
    """
    asked = [Message(Role.USER, f"probe-of-question-{n}") for n in (0, 1, 1, 2, 2)]
    thought = Message(Role.ASSISTANT, "probe-of-a-text", thinking="probe-of-a-thought")
    plain = Message(Role.ASSISTANT, "probe-of-another-text")
    if not with_calls:
        return [([each], plain if n == 2 else thought) for n, each in enumerate(asked)]
    called = Message(Role.ASSISTANT, "", thinking="probe-of-a-thought", tool_calls=(_CALL,))
    result = [tool_result(_CALL, "probe-of-a-result")]
    return [
        ([asked[0]], thought),
        ([asked[1]], called),
        (result, called),
        (result, thought),
        ([asked[2]], plain),
        ([asked[3]], called),
        (result, plain),
        ([asked[4]], thought),
    ]


def _agree(one: Rendering, other: Rendering) -> bool:
    ids = one.joined().read() == other.joined().read()
    return ids and one.thinking == other.thinking


def _acts(message: Message) -> bool:
    return message.role is Role.ASSISTANT

"""Whole conversations, rendered again before each turn at the cost of the new messages.

A template may change earlier turns when a question follows them, but it seldom changes them twice.
`HistoryRenderer` keeps the tokens of the messages before the last turns as a `Head`, and renders
only what follows it, after one short turn in place of the head. A head before answers of tools
holds while calls go on, a head before a question always.

The invariant: the tokens are those that rendering the whole conversation gives. Whether a template
allows heads is found out by rendering a probe conversation in both ways; if not, all is rendered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.errors import TemplateRefusedError
from rollart_flow.models.chat.renderer import Suffix, TurnRenderer
from rollart_flow.models.chat.template import Form
from rollart_flow.types import Message, Role, ToolCall
from rollart_flow.types.messages import tool_result

_CALL = ToolCall("probe0002", "probe", {"of": "a call"})


@dataclass(frozen=True, slots=True)
class Head:
    """The tokens of the first messages, up to the marker at the end of the last one, an action."""

    messages: int
    """Number of messages; the next one is what the environment showed after the action."""
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of one conversation."""

    settled: Head | None = None
    """Head before a question of the user."""
    newest: Head | None = None
    """Head before the last observation."""
    seen: int = 0
    """Number of messages that were rendered with `newest`."""

    def of(self, messages: Sequence[Message]) -> Head | None:
        """Return the longest head that holds for a conversation that has become longer."""
        goes_on = all(map(_goes_on, messages[self.seen :]))
        return self.newest if goes_on else self.settled


NO_HEADS = Heads()


class HistoryRenderer:
    """Renders conversations of one template and the same tools.

    Args:
        renderer: renderer of the template.
        tools: functions that the policy may call.
    """

    def __init__(self, renderer: TurnRenderer, tools: Sequence[Form]) -> None:
        self._renderer = renderer
        self._tools = tools

    def render(
        self, messages: Sequence[Message], heads: Heads = NO_HEADS, *, prompt: bool = True
    ) -> tuple[Suffix, Heads]:
        """Return the tokens of a whole conversation, and its heads for the next time.

        Args:
            messages: the messages, at least one.
            heads: those of an earlier beginning of the conversation.
            prompt: whether the prompt for an action follows.

        Raises:
            TemplateRefusedError: the template refuses the messages.
        """
        system = messages[0] if messages[0].role is Role.SYSTEM else None
        kind, known = (system is not None, bool(self._tools)), self._renderer.takes_heads
        if kind not in known:
            known[kind] = self._agrees(system)
        if not known[kind]:
            return self._renderer.all(messages, self._tools, prompt=prompt), NO_HEADS
        return self._render(messages, heads, prompt=prompt)

    def _render(
        self, messages: Sequence[Message], heads: Heads, *, prompt: bool
    ) -> tuple[Suffix, Heads]:
        head = heads.of(messages)
        if head is None:
            whole = self._renderer.all(messages, self._tools, prompt=prompt)
        else:
            rest = self._renderer.after(messages, head.messages, self._tools, prompt=prompt)
            whole = Suffix((*head.token_ids, *rest.token_ids), rest.thinking)
        last = next((n for n in range(len(messages), 0, -1) if _acts(messages[n - 1])), 0)
        if not prompt or not last or last == len(messages):
            return whole, heads
        tail = self._renderer.after(messages, last, self._tools, prompt=True).token_ids
        if whole.token_ids[len(whole.token_ids) - len(tail) :] != tail:
            return whole, heads
        made = Head(last, whole.token_ids[: len(whole.token_ids) - len(tail)])
        settled = heads.settled if all(map(_goes_on, messages[last:])) else made
        return whole, Heads(settled, made, len(messages))

    def _agrees(self, system: Message | None) -> bool:
        """Return whether a probe conversation has the same tokens with heads and without."""
        said = [] if system is None else [system]
        heads = NO_HEADS
        try:
            for observation, action in _probe(with_calls=bool(self._tools)):
                said += observation
                found, heads = self._render(said, heads, prompt=True)
                if found != self._renderer.all(said, self._tools):
                    return False
                said.append(action)
                found, _ = self._render(said, heads, prompt=False)
                if found != self._renderer.all(said, self._tools, prompt=False):
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


def _goes_on(message: Message) -> bool:
    """Return whether the turns since the last question stay as they are before a message.

    Templates drop their thinking before a question, that of gpt-oss also before a final answer.
    """
    return message.role is Role.TOOL or bool(message.tool_calls)


def _acts(message: Message) -> bool:
    return message.role is Role.ASSISTANT

"""The tokens that follow a chain, rendered by any chat template.

A template renders whole conversations, but the tokens of a chain are given. `follow` therefore
renders a conversation of one short turn in place of the chain, with a probe as the text of the
assistant, and the new messages; what comes after the probe follows the chain. Its cost does not
depend on the length of the chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from rollart_flow.errors import SettingsError, TemplateRefusedError
from rollart_flow.models.chat.forms import ANSWER, PROBE, QUESTION, MessageForms, calls_answered
from rollart_flow.models.chat.heads import HeadRule
from rollart_flow.models.chat.markers import MarkerTokenizer
from rollart_flow.models.chat.template import ChatTemplate, Form
from rollart_flow.types import Message, Role, ToolCall

_THOUGHT = "probe-of-a-thought"
_LATER: Form = {"role": "user", "content": "probe-of-a-later-question"}
_OPENERS = ("<think>", "[THINK]")


@dataclass(frozen=True, slots=True)
class Suffix:
    """The tokens that follow a chain."""

    token_ids: tuple[int, ...]
    thinking: bool
    """Whether the prompt for the action opens its thinking."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The marker after an action."""

    last: str | None
    """Marker if no message follows; None if the template writes none."""
    followed: str | None
    """Marker if a message follows, which may be that of the message."""
    plain: bool
    """Whether other text stands before the marker."""

    @property
    def stop(self) -> str | None:
        """Marker that the policy generates to end an action."""
        return self.last or self.followed


class TurnRenderer:
    """Renders messages of conversations and encodes what is new."""

    def __init__(self, template: ChatTemplate, tokenizer: MarkerTokenizer) -> None:
        """Find out how the template ends the turns of the assistant.

        Raises:
            SettingsError: the template cannot be rendered, or it ends a turn without a marker.
        """
        self._template = template
        self._tokenizer = tokenizer
        only_thinking = "reasoning_content" not in template.source
        thinking = "thinking" if only_thinking else "reasoning_content"
        self._guard = partial(tokenizer.guard, also=PROBE)
        self._forms = MessageForms(self._guard, thinking)
        try:
            text_end = self._end(ANSWER, QUESTION)
        except TemplateRefusedError as error:
            raise SettingsError(f"the chat template cannot be rendered: {error}") from error
        if text_end is None or text_end.stop is None or text_end.plain:
            raise SettingsError("the chat template ends a turn with plain text, not with a marker")
        self._text_end = text_end
        self._call_end = self._find_call_end()
        turn_ends = [end for end in (self._text_end, self._call_end) if end is not None]
        self.stops = tuple(dict.fromkeys(end.stop for end in turn_ends if end.stop is not None))
        """Markers that end an action: one of text, then one of calls."""
        ends = {marker for end in turn_ends for marker in (end.last, end.followed)}
        self._ends = tuple(sorted(marker for marker in ends if marker is not None))
        self.head_rules: dict[tuple[bool, bool], HeadRule] = {}
        """When heads of conversations hold, by whether they have a message of the system and
        tools; filled by `history` as it is found out."""

    def takes_tools(self, tools: Sequence[Form]) -> bool:
        """Return whether the template shows tools to the policy."""
        shown = self._template.render([QUESTION], tools, prompt=True)
        return shown != self._template.render([QUESTION], prompt=True)

    def open(self, messages: Sequence[Message], tools: Sequence[Form] = ()) -> Suffix:
        """Return the tokens of the first messages and of the prompt for an action.

        Raises:
            TemplateRefusedError: the template refuses the messages.
        """
        return self.all(messages, tools)

    def all(
        self, messages: Sequence[Message], tools: Sequence[Form] = (), *, prompt: bool = True
    ) -> Suffix:
        """Return the tokens of a whole conversation.

        Raises:
            TemplateRefusedError: the template refuses the messages.
        """
        forms = [*map(self._forms.of, messages)]
        return self._suffix(self._template.render(forms, tools, prompt=prompt))

    def after(
        self,
        messages: Sequence[Message],
        start: int,
        tools: Sequence[Form] = (),
        *,
        prompt: bool = True,
    ) -> Suffix:
        """Return the tokens that a whole conversation has from the end of an action on.

        Args:
            messages: the messages.
            start: number of messages before these tokens, the last of which is the action.
            tools: functions that the policy may call.
            prompt: whether the prompt for an action follows.

        Raises:
            TemplateRefusedError: the template refuses the messages.
        """
        new, first = messages[start:], messages[0]
        system = first if first.role is Role.SYSTEM else None
        calls = messages[start - 1].tool_calls if new[0].role is Role.TOOL else None
        return self._suffix(self._after(new, tools, system, calls, prompt=prompt))

    def follow(
        self,
        messages: Sequence[Message],
        tools: Sequence[Form] = (),
        *,
        first: Message | None = None,
        calls: Sequence[ToolCall] = (),
        ended: bool = True,
        stop: int | None = None,
    ) -> Suffix:
        """Return the tokens of messages after an action, and of the prompt for the next one.

        Args:
            messages: the new messages.
            tools: functions that the policy may call.
            first: message of the system that opened the conversation.
            calls: calls of the action.
            ended: whether the action ended with a stop token.
            stop: that stop token; None if it is the usual one.

        Raises:
            TemplateRefusedError: the template refuses the messages.
        """
        answers = any(message.role is Role.TOOL for message in messages)
        made = (calls or calls_answered(messages)) if answers else None
        suffix = self._suffix(self._after(messages, tools, first, made))
        written = ended and self._is_written(suffix.token_ids[0], answers, stop)
        return Suffix(suffix.token_ids[1 if written else 0 :], suffix.thinking)

    def answer(
        self, message: Message, tools: Sequence[Form] = (), *, first: Message | None = None
    ) -> tuple[int, ...]:
        """Return the tokens of an answer that the policy did not sample, after the prompt for it.

        Args:
            message: message of the assistant.
            tools: functions that the policy may call.
            first: message of the system that opened the conversation.

        Returns:
            The tokens up to the marker that ends the answer.

        Raises:
            TemplateRefusedError: the template refuses the message, or does not show it after its
                own prompt.
        """
        base = [QUESTION] if first is None else [self._forms.of(first), QUESTION]
        shown = self._template.render(base, tools, prompt=True)
        whole = self._template.render([*base, self._forms.of(message)], tools, prompt=False)
        if not whole.startswith(shown):
            raise TemplateRefusedError(
                "the chat template does not show an answer after its prompt; answers that think "
                "have reasoning_content"
            )
        token_ids = self._tokenizer.rendered(whole[len(shown) :])
        ends = [self._tokenizer.id_of(marker) for marker in self.stops]
        places = [place for place, token in enumerate(token_ids) if token in ends]
        if places:
            return token_ids[: places[0] + 1]
        end = self._call_end if message.tool_calls and self._call_end else self._text_end
        stop = self._tokenizer.id_of(end.stop or "")
        return token_ids if stop is None else (*token_ids, stop)

    def rewrites(self, first: Message | None, tools: Sequence[Form]) -> bool:
        """Return whether the template changes or drops earlier tokens once a turn follows them.

        Raises:
            TemplateRefusedError: the template refuses the messages.
        """
        base = [QUESTION] if first is None else [self._forms.of(first), QUESTION]
        answer = {**ANSWER, self._forms.thinking: _THOUGHT}
        shown = self._template.render(base, tools, prompt=True)
        last = self._template.render([*base, answer], tools, prompt=False)
        later = self._template.render([*base, answer, _LATER], tools, prompt=True)
        return not later.startswith(shown) or (_THOUGHT in last and _THOUGHT not in later)

    def _after(
        self,
        messages: Sequence[Message],
        tools: Sequence[Form],
        first: Message | None,
        calls: Sequence[ToolCall] | None,
        *,
        prompt: bool = True,
    ) -> str:
        """Return the text from the end of an action on, of a conversation that begins with it.

        Args:
            messages: messages after the action.
            tools: functions that the policy may call.
            first: message of the system that opened the conversation.
            calls: calls of the action, which are answered; None if it is text.
            prompt: whether the prompt for an action follows.
        """
        action = ANSWER if calls is None else self._forms.probe(calls)
        base = [] if first is None else [self._forms.of(first)]
        forms = [*base, QUESTION, action, *map(self._forms.of, messages)]
        _, shown, text = self._template.render(forms, tools, prompt=prompt).rpartition(PROBE)
        starts = [place for end in self._ends if (place := text.find(end)) >= 0]
        if not shown or not starts:
            missing = "marker before them" if shown else "place for calls of tools"
            raise TemplateRefusedError(
                f"the chat template refuses the messages: there is no {missing}"
            )
        return text[min(starts) :]

    def _suffix(self, text: str) -> Suffix:
        return Suffix(self._tokenizer.rendered(text), text.rstrip().endswith(_OPENERS))

    def _is_written(self, marker: int, answers: bool, stop: int | None) -> bool:
        """Return whether the marker before new messages is there, as the policy generated it.

        A marker of its own at the end of a turn may have been generated as another one, such as
        the eos token. Without one, the marker opens the next message and must be the same.
        """
        end = (self._call_end if answers else None) or self._text_end
        return end.last is not None or stop is None or stop == marker

    def _end(self, action: Form, follower: Form) -> TurnEnd | None:
        """Return the markers after an action; None if the template does not show the action."""
        shown = self._template.render([QUESTION, action], prompt=False)
        longer = self._template.render([QUESTION, action, follower], prompt=True)
        if PROBE not in shown or PROBE not in longer:
            return None
        after, before = (text.rpartition(PROBE)[2] for text in (shown, longer))
        followed = self._tokenizer.first_marker(before)
        plain = not before.lstrip().startswith(followed or "")
        return TurnEnd(self._tokenizer.first_marker(after), followed, plain)

    def _find_call_end(self) -> TurnEnd | None:
        """Find the form of calls that the template shows, and the markers after them."""
        if "tool_calls" not in self._template.source:
            return None
        for as_text, absent in product((False, True), ("", None)):
            thinking = self._forms.thinking
            forms = MessageForms(self._guard, thinking, as_text=as_text, absent=absent)
            try:
                end = self._end(forms.probe(), forms.result())
            except TemplateRefusedError:
                continue
            if end is not None:
                self._forms = forms
                return end
        return None

"""Kinds of calls, told from the structure of a session: what goes on from what, and from where.

The kind of a call may depend on later ones: a summary is one because a conversation begins with it,
and a call without tools is a side call because others have tools. Words tell only what structure
cannot, a summary from which no conversation went on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.types import Role

_ASKS_SUMMARY = re.compile(
    r"<state_snapshot>|\b(summar(y|ize|ise|izing|ising)|compact(ed|ing|ion)?)\b", re.IGNORECASE
)
"""Words for a summary; Gemini CLI and Qwen Code ask for a form instead."""
_OF_TALK = re.compile(
    r"<state_snapshot>|\b(conversation|session|history|context|dialog(ue)?|chat)\b", re.IGNORECASE
)
_TAG = re.compile(r"</?[a-zA-Z_]+>")
"""Mark around a part of a summary, such as <analysis>, which clients take away with the part."""
_LOOKED_AT = 4000
"""Characters of a message in which the words of a request are looked for."""
_LEAST_SUMMARY = 40
"""Fewest characters of an answer that is recognised in a later conversation."""


@dataclass(slots=True, kw_only=True)
class CallTraits:
    """Traits of one sampled call, from which its kind is told."""

    number: int
    """Number of the call in the session."""
    parent: int | None
    """Number of the call that it goes on from, or the last one whose answer it shows."""
    root: bool
    """Whether it begins a conversation."""
    tools: bool
    """Whether it offers tools."""
    opening: str
    """Text of the user before the first message of the assistant, of a root."""
    begins: str
    """Texts before the first message of the assistant, of a root, with single spaces."""
    shows: str
    """Text of the first message of the assistant, of a root, with single spaces."""
    asks: str
    """Text of the last message, if it is the user's."""
    lineage: str = ""
    """Session of the client's own, if it names one."""
    says: str | None = None
    """Text of an answer without calls of tools; None for another one, or without an answer."""


def traits_of(call: ModelCall, number: int, parent: int | None, *, root: bool) -> CallTraits:
    """Return the traits of a call that has no answer yet."""
    before, shows = [], ""
    for message in call.messages if root else ():
        if message.role is Role.ASSISTANT:
            shows = message.text
            break
        before.append(message)
    last = call.messages[-1]
    opening = (message.text for message in before if message.role is Role.USER)
    return CallTraits(
        number=number,
        parent=parent,
        root=root,
        tools=bool(call.tools),
        opening="\n".join(opening).strip(),
        begins=_single_spaced("\n".join(message.text for message in before)),
        shows=_single_spaced(shows),
        asks=last.text if last.role is Role.USER else "",
        lineage=call.lineage,
    )


def classify(calls: Sequence[CallTraits]) -> dict[int, CallKind]:
    """Return the kind of each call, by its number.

    The first conversation with tools is the main one, or the first of all if none has tools. Calls
    that go on from others are of their kind. A later conversation is the main one too if it has the
    same opening or one that goes on from it, shows its answers, or begins with a summary of it;
    that of a sub-agent is the sub-agent's. One of another session of the client is a sub-agent's. A
    call without tools among others with tools is a side call, and so is a lone call of a session
    without tools; any other conversation is a sub-agent's. A call that nothing goes on from is a
    compaction if a later conversation begins with its answer.

    Args:
        calls: the calls in the order of their arrival.
    """
    session = _Session(calls)
    kinds: dict[int, CallKind] = {}
    for call in calls:
        if session.summarizes(call):
            kinds[call.number] = CallKind.COMPACTION
        elif not call.root and call.parent in kinds:
            kinds[call.number] = session.kind_after(call.parent, kinds)
        else:
            kinds[call.number] = session.kind_of_root(call, kinds)
    return kinds


class _Session:
    """The calls of a session, and which of their conversations begins with which answer."""

    def __init__(self, calls: Sequence[CallTraits]) -> None:
        self._calls = {call.number: call for call in calls}
        self._offers = any(call.tools for call in calls)
        self._extended = {call.parent for call in calls if not call.root}
        roots = [call for call in calls if call.root]
        self._main = next((call for call in roots if call.tools >= self._offers), None)
        self._summaries: dict[int, int] = {}
        """The summary with which a root begins, by the number of the root."""
        for call in calls:
            parts = () if call.number in self._extended else _parts(call)
            for root in roots if parts else ():
                if root.number > call.number and _begins_with(root, call, parts):
                    self._summaries[root.number] = call.number
        last = {number: {*_parts(self._calls[number])} for number in self._summaries.values()}
        self._summarized = {
            call.number
            for call in calls
            if call.number not in self._extended
            and any(n >= call.number and not p.isdisjoint(_parts(call)) for n, p in last.items())
        }
        """Summaries, and those before them that they repeat word by word."""

    def summarizes(self, call: CallTraits) -> bool:
        """Return whether a call is a compaction: by what went on from it, or what it asks for."""
        if call.number in self._summarized:
            return True
        unfinished = call.number not in self._extended and call is not self._main
        return unfinished and bool(_parts(call)) and _asks_summary(call)

    def kind_after(self, number: int | None, kinds: Mapping[int, CallKind]) -> CallKind:
        """Return the kind of a call that goes on from one, or from the summary that one is."""
        while number is not None and kinds.get(number) is CallKind.COMPACTION:
            number = self._calls[number].parent
        return CallKind.MAIN if number is None else kinds.get(number, CallKind.MAIN)

    def kind_of_root(self, call: CallTraits, kinds: Mapping[int, CallKind]) -> CallKind:
        """Return the kind of a call that begins a conversation, and is no compaction."""
        main, offers = self._main, self._offers
        if main is None or call is main:
            return CallKind.MAIN
        if offers and not call.tools:
            return CallKind.SIDE
        if call.number in self._summaries:
            return self.kind_after(self._summaries[call.number], kinds)
        if call.lineage and main.lineage and call.lineage != main.lineage:
            return CallKind.SUB_AGENT
        if _opens_with(call.opening, main.opening):
            return CallKind.MAIN
        if call.parent in kinds:
            return self.kind_after(call.parent, kinds)
        lone = not offers and call.number not in self._extended
        return CallKind.SIDE if lone else CallKind.SUB_AGENT


def _parts(call: CallTraits) -> tuple[str, ...]:
    """Return the parts of an answer that are long enough to be a summary."""
    parts = (_single_spaced(part) for part in _TAG.split(call.says or ""))
    return tuple(part for part in parts if len(part) >= _LEAST_SUMMARY)


def _begins_with(root: CallTraits, call: CallTraits, parts: Sequence[str]) -> bool:
    """Return whether a conversation begins with the answer to a call, in place of its history.

    That is in its first messages, or as the first answer that it shows, if the call itself had
    shown one before, or had none of the tools that the conversation has: then it is not the first
    call of that conversation.
    """
    if any(part in root.begins for part in parts):
        return True
    other = call.parent is not None or (root.tools and not call.tools)
    return other and any(part in root.shows for part in parts)


def _opens_with(opening: str, main: str) -> bool:
    """Return whether an opening is the main one, or the main one and further messages.

    A client that drops an answer that it cannot parse tells what was wrong right after the opening.
    """
    return opening == main or (bool(main) and opening.startswith(main + "\n"))


def _asks_summary(call: CallTraits) -> bool:
    asks = call.asks[:_LOOKED_AT]
    return bool(_ASKS_SUMMARY.search(asks) and _OF_TALK.search(asks))


def _single_spaced(text: str) -> str:
    return " ".join(text.split())

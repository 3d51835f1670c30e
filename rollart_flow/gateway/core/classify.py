"""Kinds of calls, told from what the calls of a session say and what came of them.

The kind of a call may depend on later ones: a summary is one because the conversation goes on from
it, and a call without tools is a side call because others have tools.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.gateway.core.exchange import CallKind
from rollart_flow.types import Role

_ASKS_SUMMARY = re.compile(
    r"\b(summar(y|ize|ise|izing|ising)|compact(ed|ing|ion)?)\b", re.IGNORECASE
)
_OF_TALK = re.compile(r"\b(conversation|session|history|context|dialog(ue)?|chat)\b", re.IGNORECASE)
_SNAPSHOT = "<state_snapshot>"
"""Form in which Gemini CLI and Qwen Code ask for a summary, without a word for it."""
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
    """Text of the user before the first message of the assistant."""
    asks: str
    """Text of the last message, if it is the user's."""
    says: str | None = None
    """Text of an answer without calls of tools; None for another one, or without an answer."""


def traits_of(call: ModelCall, number: int, parent: int | None, *, root: bool) -> CallTraits:
    """Return the traits of a call that has no answer yet."""
    opening = []
    if root:
        for message in call.messages:
            if message.role is Role.ASSISTANT:
                break
            if message.role is Role.USER:
                opening.append(message.text)
    last = call.messages[-1]
    return CallTraits(
        number=number,
        parent=parent,
        root=root,
        tools=bool(call.tools),
        opening="\n".join(opening).strip(),
        asks=last.text if last.role is Role.USER else "",
    )


def classify(calls: Sequence[CallTraits]) -> dict[int, CallKind]:
    """Return the kind of each call, by its number.

    The first conversation with tools is the main one, or the first of all if none has tools. Calls
    that go on from others are of their kind. A later conversation is the main one too if it has the
    same opening, shows its answers, or begins with a summary of it. A call without tools among
    others with tools is a side call, and so is a lone call of a session without tools; any other
    conversation is a sub-agent's. A call that nothing goes on from is a compaction if a later
    conversation begins with its answer, or if it asks for a summary and gets text.

    Args:
        calls: the calls in the order of their arrival.
    """
    offers = any(call.tools for call in calls)
    extended = {call.parent for call in calls if not call.root}
    main = next((call for call in calls if call.root and call.tools >= offers), None)
    kinds: dict[int, CallKind] = {}
    for place, call in enumerate(calls):
        if call.number not in extended and _summarizes(call, calls[place + 1 :]):
            kinds[call.number] = CallKind.COMPACTION
        elif not call.root and call.parent in kinds:
            kinds[call.number] = _going_on(kinds[call.parent])
        elif main is None or call is main or call.opening == main.opening:
            kinds[call.number] = CallKind.MAIN if call.tools >= offers else CallKind.SIDE
        elif offers and not call.tools:
            kinds[call.number] = CallKind.SIDE
        elif call.parent in kinds:
            kinds[call.number] = _going_on(kinds[call.parent])
        elif any(_begins_with(call, other) for other in calls[:place]):
            kinds[call.number] = CallKind.MAIN
        else:
            lone = not offers and call.number not in extended
            kinds[call.number] = CallKind.SIDE if lone else CallKind.SUB_AGENT
    return kinds


def _going_on(kind: CallKind) -> CallKind:
    """Return the kind of a call that goes on from one of a kind."""
    return CallKind.MAIN if kind is CallKind.COMPACTION else kind


def _summarizes(call: CallTraits, later: Sequence[CallTraits]) -> bool:
    if call.says is None:
        return False
    if any(_begins_with(other, call) for other in later):
        return True
    asks = call.asks[:_LOOKED_AT]
    return _SNAPSHOT in asks or bool(_ASKS_SUMMARY.search(asks) and _OF_TALK.search(asks))


def _begins_with(call: CallTraits, other: CallTraits) -> bool:
    """Return whether a conversation begins with the answer to another call."""
    said = (other.says or "").strip()
    return call.root and len(said) >= _LEAST_SUMMARY and said in call.opening

"""The calls of a session as a forest: each answer under the answer that its prompt goes on from.

The invariant: the way from a root to an answer is the conversation that its client sent, by the
shapes of its messages. To find the parent of a call takes one look-up for each answer that its
messages have and those of earlier calls had not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from rollart_flow.control.environment import Conversation
from rollart_flow.control.rollout.branch import Branch
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.conversing import Transcript
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.gateway.core.calls import ModelCall
from rollart_flow.gateway.core.exchange import Evidence, Exchange
from rollart_flow.gateway.core.searches import Searches
from rollart_flow.gateway.core.sent_turn import SentTurn
from rollart_flow.gateway.core.structure import (
    Said,
    Shape,
    Shapes,
    flattened,
    said_in,
    same_said,
    same_thinking,
)
from rollart_flow.types import Action, Role, Tool


class CapturedBranch(Branch):
    """A branch that the calls of a client extend, one at a time."""

    __slots__ = ("busy", "last", "poisoned", "sent", "stale", "tools", "turns")

    def __init__(
        self,
        conversation: Conversation,
        tools: Sequence[Tool],
        recorder: Recorder,
        *,
        parent: Branch | None = None,
    ) -> None:
        super().__init__(conversation, Transcript(tools), recorder, parent=parent)
        self.tools = tools
        self.sent: list[SentTurn] = []
        """Request and tokens of the engine for each turn."""
        self.turns: list[CapturedTurn] = []
        """The answers that were sampled here."""
        self.busy = False
        """Whether a call on its end is under way."""
        self.last: CapturedTurn | None = None
        """The answer that the chain ends with; None if it ends with tokens that nobody got."""
        self.stale = False
        """Whether the conversation has messages that the chain has not."""
        self.poisoned: str | None = None
        """Fault of the tokens, as one line; None if they have none."""

    def answered(
        self, exchange: Exchange, chain: ChainTurn, action: Action, call_ids: Mapping[str, str]
    ) -> "CapturedTurn":
        """Note and return the answer that a client got for the last turn; see `CapturedTurn`."""
        turn = CapturedTurn(
            exchange=exchange,
            branch=self,
            chain=chain,
            depth=len(self.recorder.turns),
            action=action,
            call_ids=call_ids,
            said=said_in(action),
        )
        self.last = turn
        self.turns.append(turn)
        return turn


class _Answers:
    """Answers under one prompt's end: by the messages after it, the answers to them."""

    __slots__ = ("by_prompt", "lengths")

    def __init__(self) -> None:
        self.by_prompt: dict[tuple[Shape, ...], list[CapturedTurn]] = {}
        self.lengths: dict[int, None] = {}
        """Numbers of messages of the prompts."""


@dataclass(slots=True, eq=False, kw_only=True)
class CapturedTurn:
    """One answer that a client got."""

    exchange: Exchange
    branch: CapturedBranch
    chain: ChainTurn
    """The turn of the branch that has the tokens of the answer."""
    depth: int
    """Number of turns of the branch up to this one."""
    action: Action
    """Action that the client got."""
    call_ids: Mapping[str, str]
    """Ids of the calls in the chain, by those that the client got, in their order."""
    said: Said
    """Shape of `action`."""
    under: _Answers = field(default_factory=_Answers)

    @property
    def ends(self) -> bool:
        """Whether the branch ends with this answer, and no call extends it now."""
        return self.branch.last is self and not self.branch.busy


_Reached: TypeAlias = "tuple[CapturedTurn, int, Match]"
"""An answer, the number of messages up to it, and how well it is the last of them."""


class Match(IntEnum):
    """Degrees to which a message of the assistant matches an answer of the session."""

    NONE = 0
    STRUCTURE = 1
    ECHO = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Place of a call: the answer that it goes on from, and how that was found."""

    shapes: Shapes
    """Shapes of the messages of the call."""
    turn: CapturedTurn | None = None
    """The last answer that the call has after the same messages; None for a root."""
    used: int = 0
    """Number of messages up to that answer."""
    evidence: Evidence = Evidence.ROOT


class Forest:
    """All answers of a session."""

    def __init__(self) -> None:
        self._roots: list[tuple[tuple[Tool, ...], _Answers]] = []
        self._minted: dict[str, CapturedTurn] = {}
        """Answers by the ids that they came with."""
        self._said: dict[Said, CapturedTurn] = {}
        """The latest answers by their shapes."""
        self._searches: Searches[_Answers, _Reached] = Searches()

    def mints(self, minted: str) -> bool:
        """Return whether an id was minted."""
        return minted in self._minted

    def find(self, call: ModelCall) -> Found:
        """Return what a call goes on from: the longest conversation that its messages begin with.

        Conversations with the same messages are told apart by minted ids, then by thinking; where
        both fail, the evidence is `Evidence.AMBIGUOUS`, and there is no turn.
        """
        shapes = Shapes(call.messages)
        reached = self._reached(call, shapes)
        if not reached:
            return Found(shapes=shapes)
        most = max(reached)
        last = reached[most]
        if len(last) > 1:
            thinking = call.messages[most - 1].thinking
            alike = [each for each in last if same_thinking(each[0].action.thinking, thinking)]
            last = alike if len(alike) == 1 else last
        if len(last) > 1:
            return Found(shapes=shapes, evidence=Evidence.AMBIGUOUS)
        turn, used, match = last[0]
        evidence = Evidence.ECHO if match is Match.ECHO else Evidence.STRUCTURE
        return Found(shapes=shapes, turn=turn, used=used, evidence=evidence)

    def _reached(self, call: ModelCall, shapes: Shapes) -> dict[int, list[_Reached]]:
        """Return the answers that a call has, by the number of messages up to each."""
        search, frontier = self._searches.resumed(call, self._root(call.tools))
        while frontier:
            under, length = frontier.pop()
            used = search.nodes[under]
            if used + length >= len(shapes):
                search.pending.append((under, length))
                continue
            for each in self._answers(call, shapes, under, used, length):
                turn, after, _ = each
                search.reached.setdefault(after, []).append(each)
                search.nodes[turn.under] = after
                frontier += [(turn.under, length) for length in turn.under.lengths]
        return search.reached

    def answer_in(self, call: ModelCall, index: int, shapes: Shapes) -> CapturedTurn | None:
        """Return the answer that a message of the assistant is, whatever comes before it."""
        for each in _ids(call, index):
            if each in self._minted:
                return self._minted[each]
        said = shapes.at(index)[1]
        return self._said.get(said) if said != ("", ()) else None

    def add(self, turn: CapturedTurn, call: ModelCall, found: Found, minted: Sequence[str]) -> None:
        """Add an answer.

        Args:
            turn: the answer.
            call: the call that it answers.
            found: what the call goes on from.
            minted: ids that the answer comes with.
        """
        under = self._root(call.tools) if found.turn is None else found.turn.under
        prompt = found.shapes.between(found.used, len(found.shapes))
        under.lengths[len(prompt)] = None
        self._searches.added(under, len(prompt))
        under.by_prompt.setdefault(prompt, []).append(turn)
        self._minted |= dict.fromkeys(minted, turn)
        self._said[turn.said] = turn

    def _root(self, tools: tuple[Tool, ...]) -> _Answers:
        """Return the answers to first prompts with these tools."""
        for known, under in self._roots:
            if known == tools:
                return under
        self._roots.append((tools, _Answers()))
        return self._roots[-1][1]

    def _answers(
        self, call: ModelCall, shapes: Shapes, under: _Answers, used: int, length: int
    ) -> list[_Reached]:
        """Return the answers to the next messages of a call that its next message may be."""
        at = used + length
        if call.messages[at].role is not Role.ASSISTANT:
            return []
        turns = under.by_prompt.get(shapes.between(used, at), ())
        matched = [(turn, self._match(call, at, shapes, turn)) for turn in turns]
        best = max((match for _, match in matched), default=Match.NONE)
        if best is Match.NONE:
            return []
        return [(turn, at + 1, match) for turn, match in matched if match is best]

    def _match(self, call: ModelCall, at: int, shapes: Shapes, turn: CapturedTurn) -> Match:
        message = call.messages[at]
        owners = [self._minted[each] for each in _ids(call, at) if each in self._minted]
        if owners:
            return Match.ECHO if any(each is turn for each in owners) else Match.NONE
        if same_said(shapes.at(at)[1], turn.said):
            return Match.STRUCTURE
        call_ids = [*turn.call_ids]
        if message.tool_calls or not flattened(message.text, turn.said, call_ids):
            return Match.NONE
        return Match.ECHO if call_ids[0] in message.text else Match.STRUCTURE


def _ids(call: ModelCall, index: int) -> list[str]:
    """Return the ids that a client sent with a message of the assistant."""
    calls = call.messages[index].tool_calls
    return [*(each.call_id for each in calls), *call.echoes.get(index, ())]

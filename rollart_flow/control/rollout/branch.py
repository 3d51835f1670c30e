"""Branches of one attempt: chains of tokens, each of which is a row of `trajectories`.

The invariant: a token that was sampled is an action in exactly one branch. Other branches may show
it to the policy, as the same token and with mask False.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollart_flow.control.environment import Conversation
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.conversing import Transcript
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.types import Image, Message, Observation
from rollart_flow.types.messages import messages_of
from rollart_flow.types.token_ids import TokenBuffer, TokenIds
from rollart_flow.types.trajectories import branch_id


class Branch:
    """One chain, and the conversation that it holds.

    Args:
        conversation: turns messages to tokens, and tokens to actions.
        transcript: checks calls; None if the environment shows text and takes text.
        recorder: record of the tokens and turns.
        first: what the environment showed first.
        parent: branch that this one came from.
        caller: branch that goes on when this one, a sub-agent, ends.
    """

    __slots__ = (
        "asked", "caller", "conversation", "first", "parent", "recorder", "said", "transcript",
    )  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        transcript: Transcript | None,
        recorder: Recorder,
        *,
        first: Observation = "",
        parent: "Branch | None" = None,
        caller: "Branch | None" = None,
    ) -> None:
        self.conversation = conversation
        self.transcript = transcript
        self.recorder = recorder
        self.first = first
        self.parent = parent
        self.caller = caller
        self.asked: Observation | None = None
        """Observation that the policy answers after the request of a context policy."""
        self.said: str | None = None
        """Answer of the policy to that request."""

    def columns(self) -> dict[str, Any]:
        """Return the fields of `Trajectory` that hold the conversation."""
        if self.transcript is None:
            return {}
        token_ids = self.recorder.token_ids
        at = self.conversation.rewritten_at(token_ids) if token_ids else None
        return {**self.transcript.columns(self.recorder), "rewritten_at": at}


def branch_rows(
    branches: Sequence[Branch], trajectory_id: str, first: int = 0
) -> list[tuple[Recorder, dict[str, Any]]]:
    """Return the record of each branch, with the fields of `Trajectory` that are its own.

    Args:
        branches: branches in the order in which they began, each after its parent.
        trajectory_id: id of the first branch.
        first: index of the first branch whose record is returned; those before it have rows.
    """
    ids = {id(each): branch_id(trajectory_id, n) for n, each in enumerate(branches)}
    found = []
    for index, branch in enumerate(branches[first:], first):
        columns: dict[str, Any] = {"trajectory_id": ids[id(branch)], "branch": index}
        if branch.parent is not None:
            columns["parent"] = ids[id(branch.parent)]
            columns["shared_tokens"] = branch.recorder.shared_tokens
        found.append((branch.recorder, columns | branch.columns()))
    return found


class ChainBuilder:
    """Builds the beginning of a branch from turns of another one.

    Args:
        conversation: a conversation that has not begun.
    """

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.turns: list[ChainTurn] = []
        self.tokens = TokenBuffer()
        self.images: tuple[Image, ...] | None = None
        """Images of all turns, if they are known."""
        self.known: tuple[Branch, int] | None = None
        """A branch, and the number of leading tokens that are its own."""
        self._rendered: list[Message] = []
        self._renamed: dict[str, str] = {}
        """New ids of the calls of the last action, by their former ids."""

    @property
    def token_ids(self) -> TokenIds:
        """The chain so far, without a copy."""
        return self.tokens.read()

    def begun(self, shared: int, observation: Observation, number: int) -> Recorder:
        """Return the record of the branch, which gets the chain.

        Args:
            shared: number of leading tokens that are those of another branch.
            observation: the last one, whose turn begins after them.
            number: number of that turn in the attempt.
        """
        recorder = Recorder(self.turns, self.tokens, shared, self.images)
        recorder.begin(shared, observation, number)
        return recorder

    def common(self, other: Branch) -> int:
        """Return the number of leading tokens that are those of a branch."""
        if self.known is not None and self.known[0] is other:
            return self.known[1]
        return self.token_ids.common(other.recorder.token_ids)

    def take(self, turns: Sequence[ChainTurn], source: Recorder) -> None:
        """Add turns of a chain, with the tokens of their actions."""
        for turn in turns:
            if turn.rendered:
                self.render(turn)
            else:
                self._take(turn, source.token_ids[turn.action_start : turn.end])

    def render(self, turn: ChainTurn) -> None:
        """Add a turn whose action the chat template renders again."""
        self.turns.append(turn.as_rendered(len(self.tokens)))
        self._rendered += messages_of(turn.observation)
        if turn.action is not None:
            self._rendered.append(turn.action.as_message())

    def observe(self, observation: Observation) -> Observation:
        """Add the tokens of an observation; return it with the ids that calls have here."""
        if self._renamed and not isinstance(observation, str):
            observation = tuple(map(self._with_new_id, observation))
        shown = observation
        if self._rendered:
            shown, self._rendered = (*self._rendered, *messages_of(observation)), []
        ended = not self.turns or self.turns[-1].ended
        self.tokens.extend(self.conversation.observe(shown, ended=ended))
        return observation

    def _take(self, turn: ChainTurn, token_ids: Sequence[int]) -> None:
        start = len(self.tokens)
        observation = self.observe(turn.observation)
        action_start = len(self.tokens)
        self.tokens.extend(token_ids)
        again, action, results = self.conversation.act(token_ids), turn.action, turn.results
        if action is not None:
            pairs = [*zip(action.tool_calls, again.tool_calls, strict=False)]
            self._renamed = {old.call_id: new.call_id for old, new in pairs}
            calls = tuple(replace(old, call_id=new.call_id) for old, new in pairs)
            action = replace(action, tool_calls=calls)
        if results:
            changed = map(self._with_new_id, results.values())
            results = {str(each.call_id): each for each in changed}
        self.turns.append(
            replace(
                turn,
                start=start,
                action_start=action_start,
                end=len(self.tokens),
                observation=observation,
                action=action,
                results=results,
            )
        )

    def _with_new_id(self, message: Message) -> Message:
        call_id = message.call_id
        if call_id is None or self._renamed.get(call_id, call_id) == call_id:
            return message
        return replace(message, call_id=self._renamed[call_id])


def rendered_again(branch: Branch, observation: Observation) -> ChainBuilder | None:
    """Return the chain of a branch as its template renders it before the next observation.

    The chain has the tokens of the observation. None if the template leaves the tokens of the
    branch as they are, or refuses its messages as a whole.
    """
    try:
        retold = branch.conversation.retold(observation, branch.recorder.token_ids)
    except Exception:  # noqa: BLE001  a template that refuses the whole leaves the chain alone
        return None
    if retold is None:
        return None
    chain = ChainBuilder(retold.conversation)
    chain.tokens, chain.known = retold.tokens, (branch, retold.shared)
    turns = branch.recorder.turns
    chain.turns = [
        turn if turn.rendered and not turn.start else turn.as_rendered() for turn in turns
    ]
    chain.images = branch.recorder.images
    return chain

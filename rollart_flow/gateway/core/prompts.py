"""The chain of tokens that the prompt of a call is.

The invariants: tokens that were sampled are never encoded again, wherever a client shows them to
the policy; a chain that a call fails to extend is as it was.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from rollart_flow.control.environment import ChatCodec, Conversation
from rollart_flow.control.rollout.branch import ChainBuilder, rendered_again
from rollart_flow.errors import RollartError, SettingsError
from rollart_flow.gateway.core.call_ids import CallIds
from rollart_flow.gateway.core.calls import CallRefusedError, ModelCall, Refusal
from rollart_flow.gateway.core.exchange import Evidence
from rollart_flow.gateway.core.forest import CapturedBranch, CapturedTurn, Forest, Found
from rollart_flow.gateway.core.recording import compare
from rollart_flow.text import one_line
from rollart_flow.types import AttemptLimits, Message, Role, Tool
from rollart_flow.types.token_ids import TokenIds

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCall:
    """The place of a call in its session."""

    branch: CapturedBranch
    """The branch that the prompt ends."""
    found: Found
    new: bool
    """Whether the branch begins with the call."""
    source: CapturedTurn | None
    """The answer that the call goes on from, or the last one that it shows; None for a root."""


class BudgetSpentError(RollartError):
    """Raised for a call beyond the calls, tokens or branches that an attempt may have."""


class _Part(NamedTuple):
    """Messages, and the answer of the session that follows them."""

    shown: tuple[Message, ...]
    answer: CapturedTurn | None


class PromptBuilder:
    """Builds the chains of calls.

    Args:
        codec: codec of the policy.
        limits: limits of the attempt.
        forest: answers of the session.
    """

    def __init__(self, codec: ChatCodec, limits: AttemptLimits, forest: Forest) -> None:
        self._codec = codec
        self._limits = limits
        self._forest = forest
        self._branches: list[CapturedBranch] = []

    @property
    def branches(self) -> Sequence[CapturedBranch]:
        """All branches in the order in which they began."""
        return self._branches

    def place(self, call: ModelCall, number: int) -> PlacedCall:
        """Add the prompt of a call to a branch, or to a new one.

        Args:
            call: the call.
            number: number of the call in the session.

        Raises:
            CallRefusedError: the prompt is too long, or no template takes its messages.
            BudgetSpentError: it would begin one branch more than the attempt may have.
        """
        found = self._forest.find(call)
        parts = self._parts(call, found)
        if found.turn is not None and found.turn.ends and len(parts) == 1:
            return self._extend(found, found.turn, parts[0].shown, number)
        return self._begin(call, found, parts, number)

    def count(self, call: ModelCall) -> int:
        """Return the number of tokens that the prompt of a call would have.

        Raises:
            CallRefusedError: no template takes its messages.
        """
        found = self._forest.find(call)
        parts = self._parts(call, found)
        chain = self._chain(call, found, parts)
        _rendered(partial(chain.observe, parts[-1].shown))
        return len(chain.tokens)

    def restore(self, branch: CapturedBranch) -> None:
        """Give a branch the conversation of its chain again, if it has another one."""
        if branch.stale:
            chain, recorder = ChainBuilder(self._converse(branch.tools)), branch.recorder
            _rendered(partial(chain.take, recorder.turns, recorder))
            branch.conversation, branch.stale = chain.conversation, False

    def compared(self) -> Sequence[CapturedBranch]:
        """Return all branches as their rows have them: compared with what the engine returned.

        Those that no call extends now show all messages of their conversations.
        """
        for branch in self.branches:
            compare(branch, branch.sent)
            if not branch.busy:
                with suppress(CallRefusedError):  # its row says that nothing renders it
                    self.restore(branch)
        return self.branches

    def _parts(self, call: ModelCall, found: Found) -> list[_Part]:
        """Return what follows the found answer, cut after each message that is an answer.

        Each part is messages and the answer after them, which the last part lacks. Their calls
        have ids that chat templates take.
        """
        ids = CallIds()
        if found.turn is not None:
            ids.answered(found.turn)
        parts: list[_Part] = []
        shown: list[Message] = []
        for index in range(found.used, len(call.messages)):
            message, turn = call.messages[index], None
            if message.role is Role.ASSISTANT:
                turn = self._forest.answer_in(call, index, found.shapes)
            if turn is None:
                shown.append(ids.in_chain(message))
                continue
            parts.append(_Part(tuple(shown), turn))
            ids.answered(turn)
            shown = []
        if not shown or shown[-1].role is Role.ASSISTANT:
            raise CallRefusedError(
                Refusal.UNSUPPORTED,
                "the last message is the assistant's; end the conversation with a message of the "
                "user or of a tool",
            )
        return [*parts, _Part(tuple(shown), None)]

    def _extend(
        self, found: Found, turn: CapturedTurn, shown: tuple[Message, ...], number: int
    ) -> PlacedCall:
        """Add messages to the end of a branch, or to a new one if the template changes turns."""
        branch = turn.branch
        recorder, tools = branch.recorder, branch.tools
        self.restore(branch)
        again = rendered_again(branch, shown) if self._codec.branches_history else None
        if again is not None:
            return self._start(again, shown, found, turn, number, tools)
        branch.stale = True  # until the chain has what the conversation has
        observe = partial(branch.conversation.observe, shown, ended=recorder.ended)
        tokens = _rendered(observe)
        self._check_room(len(recorder) + len(tokens))
        recorder.observe(shown, tokens, number)
        branch.stale = False
        return PlacedCall(branch=branch, found=found, new=False, source=turn)

    def _begin(
        self, call: ModelCall, found: Found, parts: Sequence[_Part], number: int
    ) -> PlacedCall:
        """Begin a branch with the messages of a call, unless their tokens are those of one."""
        chain, shown = self._chain(call, found, parts), parts[-1].shown
        _rendered(partial(chain.observe, shown))
        if found.evidence is Evidence.ROOT and _shows_answers(call):
            known = self._with_tokens(call, found, chain.token_ids)
            if known.turn is not None and known.turn.ends:
                return self._go_on(chain, known, known.turn, call, number)
            found = known
        later = [part.answer for part in parts if part.answer is not None]
        source = found.turn or (later[-1] if later else None)
        if source is not None and found.turn is None and found.evidence is Evidence.ROOT:
            found = replace(found, evidence=Evidence.ECHO)
        return self._start(chain, shown, found, source, number, call.tools)

    def _with_tokens(self, call: ModelCall, found: Found, token_ids: TokenIds) -> Found:
        """Return the answer with which the longest beginning of the tokens ends."""
        best: list[CapturedTurn] = []
        for branch in self._branches:
            shared = token_ids.common(branch.recorder.token_ids)
            ended = [turn for turn in branch.turns if turn.chain.end <= shared]
            if ended and (not best or ended[-1].chain.end >= best[0].chain.end):
                again = best and ended[-1].chain.end == best[0].chain.end
                best = [*best, ended[-1]] if again else [ended[-1]]
        if len(best) != 1:
            return replace(found, evidence=Evidence.AMBIGUOUS) if best else found
        used = 1 + max(n for n, each in enumerate(call.messages) if each.role is Role.ASSISTANT)
        return replace(found, turn=best[0], used=used, evidence=Evidence.TOKENS)

    def _go_on(
        self, chain: ChainBuilder, found: Found, turn: CapturedTurn, call: ModelCall, number: int
    ) -> PlacedCall:
        """Go on with a branch whose tokens a rendered conversation begins with."""
        branch, length = turn.branch, turn.chain.end
        self._check_room(len(chain.tokens))
        ids = CallIds()
        ids.answered(turn)
        shown = tuple(map(ids.in_chain, call.messages[found.used :]))
        branch.conversation, branch.stale = chain.conversation, False
        branch.recorder.observe(shown, chain.token_ids[length:], number)
        return PlacedCall(branch=branch, found=found, new=False, source=turn)

    def _start(
        self,
        chain: ChainBuilder,
        shown: tuple[Message, ...],
        found: Found,
        source: CapturedTurn | None,
        number: int,
        tools: Sequence[Tool],
    ) -> PlacedCall:
        """Begin a branch with a chain, the last messages of which are `shown`."""
        self._check_room(len(chain.tokens))
        if len(self._branches) >= self._limits.max_branches:
            raise BudgetSpentError("the attempt has as many branches as it may have")
        parent = None if source is None else source.branch
        shared = 0
        if parent is not None:  # what a call under way has added may be taken back
            shared = min(chain.common(parent), parent.recorder.settled_tokens)
        recorder = chain.begun(shared, shown, number)
        branch = CapturedBranch(chain.conversation, tools, recorder, parent=parent)
        self._branches.append(branch)
        return PlacedCall(branch=branch, found=found, new=True, source=source)

    def _chain(self, call: ModelCall, found: Found, parts: Sequence[_Part]) -> ChainBuilder:
        """Return a chain up to the last answer that the messages of a call have."""
        chain = ChainBuilder(self._converse(call.tools))
        turn = found.turn
        if turn is not None:
            source = turn.branch.recorder
            _rendered(partial(chain.take, source.turns[: turn.depth], source))
        for part in parts:
            if part.answer is not None:
                taken = replace(part.answer.chain, observation=part.shown, results=None)
                _rendered(partial(chain.take, [taken], part.answer.branch.recorder))
        return chain

    def _converse(self, tools: Sequence[Tool]) -> Conversation:
        try:
            return self._codec.converse(tools)
        except SettingsError as error:
            raise CallRefusedError(Refusal.UNSUPPORTED, one_line(error)) from error

    def _check_room(self, tokens: int) -> None:
        most = self._limits.context_tokens
        if tokens >= most:
            said = f"the prompt has {tokens} tokens, but the context ends at {most}"
            raise CallRefusedError(Refusal.OVERFLOW, said, tokens=tokens, limit=most)


def _shows_answers(call: ModelCall) -> bool:
    return any(message.role is Role.ASSISTANT for message in call.messages)


def _rendered(render: Callable[[], V]) -> V:
    """Return what a template renders.

    Raises:
        CallRefusedError: it refuses the messages.
    """
    try:
        return render()
    except Exception as error:  # templates raise what they like
        said = one_line(f"the chat template refuses the messages: {error}")
        raise CallRefusedError(Refusal.INVALID, said) from error

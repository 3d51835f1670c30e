"""BranchTree: the branches of one attempt, one of which goes on."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rollart_flow.control.environment import Codec, Conversation, takes_messages
from rollart_flow.control.rollout.branch import (
    Branch,
    ChainBuilder,
    branch_rows,
    rendered_again,
)
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.conversing import (
    TextConversation,
    Transcript,
    converse,
    with_results,
)
from rollart_flow.control.rollout.interrupts import AttemptEndedError, AttemptResult, failed
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.errors import SettingsError
from rollart_flow.text import one_line
from rollart_flow.types import AttemptLimits, Observation, Outcome, Reason, Tool
from rollart_flow.types.branching import Retry, SubAgent

V = TypeVar("V")


class BranchTree:
    """The branches of one attempt.

    Args:
        codec: codec of the policy.
        limits: limits of the attempt.
        offered: tools of the context policy, which every branch has.
    """

    __slots__ = ("_codec", "_limits", "_offered", "all", "current", "rerenders", "takes_text")

    def __init__(self, codec: Codec, limits: AttemptLimits, offered: Sequence[Tool]) -> None:
        self._codec = codec
        self._limits = limits
        self._offered = offered
        self.current = Branch(TextConversation(codec), None, Recorder())
        """The branch that goes on."""
        self.all = [self.current]
        """All branches, in the order in which they began."""
        self.rerenders = takes_messages(codec) and codec.branches_history
        """Whether a branch begins where the chat template changes earlier turns."""
        self.takes_text = True
        """Whether the environment takes the text of an action."""

    def converse(self, tools: Sequence[Tool] | None) -> None:
        """Begin a conversation of messages in the first branch."""
        self.current.transcript = self._transcript(tools)
        self.current.conversation = self._converse(self.current.transcript)

    def begin_sub_agent(self, number: int, agent: SubAgent) -> None:
        """Begin the branch of a sub-agent, after which the current branch goes on."""
        if agent.tools and self.takes_text:
            raise environment_error("a sub-agent has tools; set converses = True")
        transcript = self._transcript(None if self.takes_text else agent.tools)
        chain = ChainBuilder(self._converse(transcript))
        shown = _encoded(lambda: chain.observe(agent.messages))
        branch = Branch(chain.conversation, transcript, Recorder(), first=agent.messages,
                        parent=self.current, caller=self.current)  # fmt: skip
        self._start(number, branch, chain, shown)

    def end_sub_agent(self) -> None:
        """Go on with the branch that began the current one."""
        if self.current.caller is None:
            raise environment_error("`step` returned Return outside of a sub-agent")
        self.current = self.current.caller

    def retry(self, number: int, again: Retry) -> None:
        """Begin a branch before a turn of the current one."""
        turns = self.current.recorder.turns
        if not -len(turns) <= again.turn < len(turns):
            turn = one_line(again.turn, 40)  # a number may have too many digits for a text
            said = f"`step` returned Retry of turn {turn} of a branch of {len(turns)}"
            raise environment_error(said)
        turns = turns[: again.turn % len(turns)]
        if turns:
            shown = with_results(turns[-1], again.observation)
            self.restart(number, shown, turns, self.current.first)
        else:
            self.restart(number, again.observation, turns, again.observation)

    def restart(
        self,
        number: int,
        observation: Observation,
        turns: Sequence[ChainTurn],
        first: Observation,
    ) -> None:
        """Begin a branch with turns of the current one, in place of it.

        Args:
            number: number of the turn in the attempt.
            observation: what the policy answers next.
            turns: turns that the branch shows the policy.
            first: first messages of the branch, for its context policy.
        """
        chain = ChainBuilder(self._converse(self.current.transcript))
        _encoded(lambda: chain.take(turns, self.current.recorder))
        shown = _encoded(lambda: chain.observe(observation))
        self._start(number, self._heir(chain, first), chain, shown)

    def render_again(self, number: int, observation: Observation) -> bool:
        """Begin a branch if the chat template changes earlier turns; return whether it does."""
        branch = self.current
        chain = rendered_again(branch, observation)
        if chain is None:
            return False
        self._start(number, self._heir(chain, branch.first), chain, observation)
        return True

    def append(self, number: int, observation: Observation) -> bool:
        """Add an observation to the current chain; return whether it leaves room for an action."""
        branch = self.current
        recorder = branch.recorder
        try:
            tokens = branch.conversation.observe(observation, ended=recorder.ended)
        except Exception as error:  # what no tokenizer or template takes is the environment's doing
            raise _encoding_failed(error) from error
        if len(recorder) + len(tokens) < self._limits.context_tokens:
            recorder.observe(observation, tokens, number)
            return True
        if branch.transcript is not None:  # the conversation forgets the observation
            chain = ChainBuilder(self._converse(branch.transcript))
            chain.take(recorder.turns, recorder)
            branch.conversation = chain.conversation
        return False

    def rows(self, trajectory_id: str) -> list[tuple[Recorder, dict[str, Any]]]:
        """Return the record of each branch, with the fields of `Trajectory` that are its own.

        Args:
            trajectory_id: id of the first branch.
        """
        if len(self.all) > 1 and not self.all[-1].recorder.sampled:
            self.all.pop()  # the attempt ended before its first token
        return branch_rows(self.all, trajectory_id)

    def _heir(self, chain: ChainBuilder, first: Observation) -> Branch:
        """Return a branch in place of the current one."""
        branch = self.current
        assert branch.transcript is not None, "an attempt of text has one branch"
        transcript = Transcript(None if self.takes_text else branch.transcript.tools)
        return Branch(chain.conversation, transcript, Recorder(), first=first, parent=branch,
                      caller=branch.caller)  # fmt: skip

    def _start(
        self, number: int, branch: Branch, chain: ChainBuilder, observation: Observation
    ) -> None:
        """Make a branch with a chain the current one; the observation is the last of the chain."""
        most = self._limits.max_branches
        if len(self.all) >= most and sum(each.recorder.sampled for each in self.all) >= most:
            raise AttemptEndedError(AttemptResult(Outcome.TRUNCATED, Reason.BRANCH_LIMIT))
        if len(chain.tokens) >= self._limits.context_tokens:
            raise AttemptEndedError(AttemptResult(Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW))
        branch.recorder = chain.begun(chain.common(self.current), observation, number)
        self.current = branch
        self.all.append(branch)

    def _transcript(self, tools: Sequence[Tool] | None) -> Transcript:
        """Return the transcript of a conversation, with the tools of the context policy too."""
        if self._offered and tools is None:
            raise environment_error(
                f"context={self._limits.context!r} has tools, but the environment takes text; "
                "choose another, or set converses = True"
            )
        return Transcript(None if tools is None else (*tools, *self._offered))

    def _converse(self, transcript: Transcript | None) -> Conversation:
        try:
            return converse(self._codec, () if transcript is None else transcript.tools)
        except SettingsError as error:
            raise failed(Reason.ENVIRONMENT_ERROR, "beginning the conversation", error) from error


def _encoded(encode: Callable[[], V]) -> V:
    try:
        return encode()
    except Exception as error:  # what no tokenizer or template takes is the environment's doing
        raise _encoding_failed(error) from error


def _encoding_failed(error: Exception) -> AttemptEndedError:
    return failed(Reason.ENVIRONMENT_ERROR, "encoding the observation", error)


def environment_error(said: str) -> AttemptEndedError:
    """Return the exception for an environment that broke its protocol."""
    return AttemptEndedError(AttemptResult(Outcome.FAILED, Reason.ENVIRONMENT_ERROR, said))

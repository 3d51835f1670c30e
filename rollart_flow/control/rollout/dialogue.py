"""Dialogue: what an environment and a policy say to each other in one attempt.

An attempt begins with one branch. Another one begins where the environment returns `SubAgent` or
`Retry`, where a context policy shortens a chain, and where the chat template changes earlier turns
of a policy with history="branch". A chain itself only ever grows.
"""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from rollart_flow.control.context.registry import named_context
from rollart_flow.control.environment import Codec
from rollart_flow.control.rollout.branch_tree import BranchTree, environment_error
from rollart_flow.control.rollout.chain_turn import ChainTurn
from rollart_flow.control.rollout.conversing import refusals, with_results, without
from rollart_flow.control.rollout.env_checks import StepAnswer
from rollart_flow.control.rollout.interrupts import AttemptEndedError, AttemptResult
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.control.rollout.shortening import Shortening
from rollart_flow.types import (
    Action,
    AttemptLimits,
    Generation,
    Message,
    Observation,
    Outcome,
    Reason,
    Tool,
)
from rollart_flow.types.branching import Branching, Retry, Return, StepObservation, SubAgent
from rollart_flow.types.messages import tool_result

_context = cache(named_context)


class Steps(Protocol):
    """An environment that takes actions, and says how long the last one took."""

    async def step(self, action: str | Action) -> StepAnswer: ...

    @property
    def call_s(self) -> float: ...


class Dialogue:
    """The dialogue of one attempt.

    Args:
        codec: codec of the policy.
        limits: limits of the attempt.
    """

    __slots__ = ("_notes", "_shortening", "_tree")

    def __init__(self, codec: Codec, limits: AttemptLimits) -> None:
        context = _context(limits.context)
        self._shortening = None if context is None else Shortening(context, limits.context_tokens)
        self._notes: list[str] = []
        self._tree = BranchTree(codec, limits, () if context is None else context.tools)

    @property
    def recorder(self) -> Recorder:
        """The record of the current branch."""
        return self._tree.current.recorder

    def begin(self, observation: Observation, tools: Sequence[Tool] | None) -> None:
        """Begin with the first observation, and the tools of an environment that converses."""
        tree = self._tree
        tree.takes_text = tools is None
        tree.current.first = observation
        one_branch = self._shortening is None and not tree.rerenders
        if tools is not None or not isinstance(observation, str) or not one_branch:
            tree.converse(tools)

    def observe(self, number: int, observation: StepObservation) -> None:
        """Add an observation to the chain, or to a new one, if it leaves room for an action.

        Args:
            number: number of the turn in the attempt.
            observation: what the environment returned.
        """
        tree = self._tree
        branch = tree.current
        if branch.transcript is None and isinstance(observation, str):  # the short way of text
            if not tree.append(number, observation):
                raise _overflow()
        elif not isinstance(observation, Branching):
            if branch.said is None:
                self._go_on(number, with_results(branch.recorder.last, observation))
            else:
                said, branch.said = branch.said, None
                self._shorten(number, observation, branch.recorder.turns[:-1], said)
        elif branch.transcript is None:
            kind = type(observation).__name__
            raise environment_error(
                f"`step` returned {kind}, but the environment shows text; set converses = True"
            )
        else:
            self._follow(number, observation)

    def act(self, generation: Generation, generate_s: float) -> Action:
        """Add generated tokens to the chain; return their action, with its calls checked.

        Raises:
            AttemptEndedError: the schema of a called tool is faulty; the tokens are added.
        """
        branch = self._tree.current
        action = branch.conversation.act(generation.token_ids)
        try:
            if branch.transcript is not None:
                action = branch.transcript.checked(action)
        finally:
            branch.recorder.act(generation, action, generate_s)
        return action

    async def answer(self, environment: Steps, action: Action) -> StepAnswer:
        """Return the environment's answer to an action.

        Answers to calls that cannot be made, or that the context policy takes, are added to the
        next observation; an action with only such calls does not reach the environment.
        """
        branch, recorder = self._tree.current, self._tree.current.recorder
        if branch.asked is not None:
            recorder.end_turn()
            asked, branch.asked, branch.said = branch.asked, None, action.text
            return StepAnswer(asked, 0.0, False, False, {})
        makes = action
        if action.tool_calls:
            results = refusals(action) | self._called(action)
            makes = without(action, results)
            if recorder.last is not None:
                recorder.last.results = results
            if not makes.tool_calls:
                recorder.end_turn()
                return StepAnswer((), 0.0, False, False, {})
        try:
            answer = await environment.step(action.text if self._tree.takes_text else makes)
        except (AttemptEndedError, asyncio.CancelledError):
            recorder.end_turn(step_s=environment.call_s)
            raise
        recorder.end_turn(answer.reward, environment.call_s)
        return answer

    def rows(self, trajectory_id: str) -> list[tuple[Recorder, dict[str, Any]]]:
        """Return the record of each branch, with the fields of `Trajectory` that are its own."""
        return self._tree.rows(trajectory_id)

    def _follow(self, number: int, observation: Branching) -> None:
        """Do what makes the attempt branch."""
        tree = self._tree
        match observation:
            case SubAgent():
                tree.begin_sub_agent(number, observation)
            case Return(inner):
                tree.end_sub_agent()
                self.observe(number, inner)
            case Retry():
                tree.retry(number, observation)

    def _go_on(self, number: int, observation: Observation) -> None:
        """Continue the current branch, unless its chain has to be shortened or rendered again."""
        tree, branch, shortening = self._tree, self._tree.current, self._shortening
        turns = branch.recorder.turns if shortening is not None else []
        if shortening is not None and shortening.due(branch.recorder):
            if not self._ask(number, observation):
                self._shorten(number, observation, turns)
            return
        if tree.rerenders and branch.recorder.last and tree.render_again(number, observation):
            return
        if tree.append(number, observation):
            return
        if len(turns) < 2:
            raise _overflow()
        self._shorten(number, observation, turns, least=True)

    def _ask(self, number: int, observation: Observation) -> bool:
        """Ask what the context policy asks the policy first; return whether it can be asked."""
        shortening = self._shortening
        if shortening is None or shortening.request is None:
            return False
        try:
            asked = self._tree.append(number, shortening.asks(observation))
        except AttemptEndedError:  # the template has no place for a request after these messages
            return False
        if asked:
            self._tree.current.asked = observation
        return asked

    def _shorten(
        self,
        number: int,
        observation: Observation,
        turns: Sequence[ChainTurn],
        said: str | None = None,
        *,
        least: bool = False,
    ) -> None:
        """Go on in a branch with the first messages and the last turns."""
        assert self._shortening is not None, "only a context policy shortens"
        first = self._tree.current.first
        kept = self._shortening.kept(first, turns, said, self._notes, least=least)
        self._tree.restart(number, observation, kept, first)

    def _called(self, action: Action) -> dict[str, Message]:
        """Return the answers to calls of the context policy's tools, by id."""
        if self._shortening is None:
            return {}
        names = {tool.name for tool in self._shortening.tools}
        return {
            call.call_id: tool_result(call, self._shortening.called(call, self._notes))
            for call in action.tool_calls
            if call.error is None and call.name in names
        }


def _overflow() -> AttemptEndedError:
    return AttemptEndedError(AttemptResult(Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW))

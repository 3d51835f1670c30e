"""Dialogue: what an environment and a policy say to each other in one attempt, and its record."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rollart_flow.control.protocols import Codec, Conversation
from rollart_flow.control.rollout.conversing import (
    TextConversation,
    Transcript,
    converse,
    images_of,
    made,
    text_of,
    with_refusals,
)
from rollart_flow.control.rollout.env_checks import StepAnswer
from rollart_flow.control.rollout.guarded_env import GuardedEnvironment
from rollart_flow.control.rollout.interrupts import AttemptEndedError, AttemptResult, failed
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.errors import SettingsError
from rollart_flow.types import Action, Generation, Observation, Outcome, Reason, Tool
from rollart_flow.types.messages import messages_of


class Dialogue:
    """The dialogue of one attempt.

    Args:
        codec: codec of the policy.
        recorder: record of the tokens and turns.
        context_tokens: most tokens of the chain.
    """

    __slots__ = ("_codec", "_context_tokens", "_conversation", "_recorder", "_tools", "_transcript")

    def __init__(self, codec: Codec, recorder: Recorder, context_tokens: int) -> None:
        self._codec = codec
        self._recorder = recorder
        self._context_tokens = context_tokens
        self._tools: Sequence[Tool] | None = None
        self._conversation: Conversation = TextConversation(codec)
        self._transcript: Transcript | None = None

    def begin(self, observation: Observation, tools: Sequence[Tool] | None) -> None:
        """Begin with the first observation, and the tools of an environment that converses."""
        if tools is None and isinstance(observation, str):
            return
        self._tools = tools
        self._transcript = Transcript(tools)
        try:
            self._conversation = converse(self._codec, tools or ())
        except SettingsError as error:
            raise failed(Reason.ENVIRONMENT_ERROR, "beginning the conversation", error) from error

    def observe(self, turn: int, observation: Observation) -> None:
        """Add an observation to the chain, if it leaves room for an action."""
        try:
            tokens = self._conversation.observe(observation, ended=self._recorder.ended)
        except Exception as error:  # what no tokenizer or template takes is the environment's doing
            raise failed(Reason.ENVIRONMENT_ERROR, "encoding the observation", error) from error
        if len(self._recorder) + len(tokens) >= self._context_tokens:
            raise AttemptEndedError(AttemptResult(Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW))
        self._recorder.observe(text_of(observation), tokens, images_of(observation))
        if self._transcript is not None:
            self._transcript.add(turn, messages_of(observation))

    def act(self, turn: int, generation: Generation, generate_s: float) -> Action:
        """Add generated tokens to the chain; return their action, with its calls checked."""
        action = self._conversation.act(generation.token_ids)
        if self._transcript is not None:
            action = self._transcript.checked(action)
            self._transcript.add(turn, (action.as_message(),))
        self._recorder.act(generation, action.text, generate_s)
        return action

    async def answer(self, environment: GuardedEnvironment, action: Action) -> StepAnswer:
        """Return the environment's answer, with those to the calls that cannot be made.

        An action all of whose calls cannot be made does not reach the environment.
        """
        makes = made(action)
        if action.tool_calls and not makes.tool_calls:
            self._recorder.end_turn()
            return StepAnswer(with_refusals(action, ()), 0.0, False, False, {})
        try:
            answer = await environment.step(action.text if self._tools is None else makes)
        except (AttemptEndedError, asyncio.CancelledError):
            self._recorder.end_turn(step_s=environment.call_s)
            raise
        self._recorder.end_turn(answer.reward, environment.call_s)
        if makes is action:
            return answer
        return answer._replace(observation=with_refusals(action, answer.observation))

    def columns(self) -> dict[str, Any] | None:
        """Return the fields of `Trajectory` of a conversation; None if all was text."""
        if self._transcript is None:
            return None
        ids = self._recorder.token_ids
        rewritten_at = self._conversation.rewritten_at(ids) if ids else None
        return {**self._transcript.columns(), "rewritten_at": rewritten_at}

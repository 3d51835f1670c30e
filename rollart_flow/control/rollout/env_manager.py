"""EnvManager: drives one attempt at one task from reset to its outcome (ROLLART section 6.1).

The invariants, beside those of `AttemptManager`: generated tokens are never encoded again; those of
an action that was interrupted are kept.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from itertools import count, islice
from typing import Any

from rollart_flow.control.environment import AsyncEnvironment, Codec
from rollart_flow.control.inference.generation_builder import GenerationFailedError
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import Admission
from rollart_flow.control.rollout.attempt_manager import AttemptContext, AttemptManager
from rollart_flow.control.rollout.dialogue import Dialogue
from rollart_flow.control.rollout.dispatch import FREE, Dispatch, StageSlot
from rollart_flow.control.rollout.interrupts import AttemptEndedError, AttemptResult, failed
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.errors import EngineError
from rollart_flow.types import (
    Action,
    Assignment,
    AttemptLimits,
    FinishReason,
    Generation,
    GenerationRequest,
    Outcome,
    Reason,
)
from rollart_flow.types.branching import StepObservation


class EnvManager(AttemptManager):
    """Runs a single attempt.

    Args:
        assignment: the attempt.
        make: makes its environment.
        codec: observation text to tokens, action tokens to text.
        proxy: generates the actions.
        limits: limits of the attempt.
        wall: UTC time of a time of the running loop.
        env_version: name and version of the environment, stored with the trajectory.
        admission: the scheduler; None for evaluation, which needs no permission.
        worker: name of the rollout worker that runs the attempt.
        dispatch: how the attempt waits for others, and where it is decoded.
    """

    __slots__ = ("_dialogue", "_lockstep", "_placement", "_slot")

    def __init__(
        self,
        assignment: Assignment,
        make: Callable[[], AsyncEnvironment],
        codec: Codec,
        proxy: LLMProxy,
        limits: AttemptLimits,
        wall: Callable[[float], datetime],
        *,
        env_version: str = "",
        admission: Admission | None = None,
        worker: str = "",
        dispatch: Dispatch = FREE,
    ) -> None:
        context = AttemptContext(
            proxy=proxy, wall=wall, env_version=env_version, admission=admission, worker=worker,
            dispatch=dispatch,
        )  # fmt: skip
        super().__init__(assignment, make, limits, context)
        self._lockstep = dispatch.lockstep
        self._slot = dispatch.slot(assignment)
        self._placement = dispatch.placement(assignment)
        self._dialogue = Dialogue(codec, limits)

    def _drive(self) -> Coroutine[Any, Any, AttemptResult]:
        """Return the coroutine of the attempt, which passes through stages if there are any."""
        return self._episode() if self._slot is None else self._staged(self._slot)

    def _rows(self) -> list[tuple[Recorder, dict[str, Any]]]:
        return self._dialogue.rows(self.assignment.trajectory_id)

    async def _staged(self, slot: StageSlot) -> AttemptResult:
        try:
            await slot.begin()
            return await self._episode()
        finally:
            slot.leave()

    async def _episode(self) -> AttemptResult:
        """Run the attempt; the time limit holds from its permission to its end, without waits."""
        if (refused := await self._refused()) is not None:
            return refused
        assignment = self.assignment
        self._time_limit.start()
        observation: StepObservation
        observation = await self._environment.reset(assignment.env_seed, assignment.task.payload)
        if self._slot is not None:
            self._time_limit.pause()
            await self._slot.proceed()
            self._time_limit.start()
        if self._ahead:
            self._time_limit.pause()
            if (refused := await self._until_cleared()) is not None:
                return refused
            self._time_limit.start()
        self._dialogue.begin(observation, self._environment.tools)
        for turn in islice(count(), self._limits.max_turns):
            self._dialogue.observe(turn, observation)
            if self._lockstep is not None:
                await self._lockstep.turn()
            action = await self._act(turn)
            answer = await self._dialogue.answer(self._environment, action)
            if answer.terminated:
                return AttemptResult(Outcome.COMPLETED)
            if answer.truncated:
                break
            observation = answer.observation
        return AttemptResult(Outcome.TRUNCATED, Reason.TURN_LIMIT)

    async def _act(self, turn: int) -> Action:
        """Generate the action of a turn and return it, its calls checked."""
        request = self._request(turn)
        started = asyncio.get_running_loop().time()
        self._attempt.generating = request.request_id
        error: EngineError | None = None
        try:
            generation = await self._proxy.generate(request, self._first_token)
        except EngineError as failure:
            error = failure
            partial = failure.partial if isinstance(failure, GenerationFailedError) else None
            generation = partial or Generation((), (), (), FinishReason.ABORT)
        finally:
            self._attempt.generating = None
        seconds = asyncio.get_running_loop().time() - started
        action = self._dialogue.act(generation, seconds)
        self._attempt.check()
        if error is not None:
            raise failed(Reason.ENGINE_ERROR, "the engine", error) from error
        self._check_finish(generation)
        return action

    def _request(self, turn: int) -> GenerationRequest:
        assignment, recorder = self.assignment, self._dialogue.recorder
        room = self._limits.context_tokens - len(recorder)
        sampling = assignment.sampling
        if room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=room)
        return GenerationRequest(
            request_id=f"{self._session}/{turn}",
            prompt_ids=recorder.token_ids,
            sampling=sampling,
            trajectory_id=assignment.trajectory_id,
            domain=assignment.task.domain,
            placement=self._placement,
            images=recorder.images,
        )

    def _check_finish(self, generation: Generation) -> None:
        """End the attempt if a generation gave no action."""
        if generation.finish_reason is FinishReason.ABORT:
            error = "the engine aborted the generation on its own"
            raise AttemptEndedError(AttemptResult(Outcome.FAILED, Reason.ENGINE_ERROR, error))
        if not generation.token_ids:
            raise AttemptEndedError(AttemptResult(Outcome.TRUNCATED, Reason.CONTEXT_OVERFLOW))

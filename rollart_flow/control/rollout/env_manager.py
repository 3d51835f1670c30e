"""EnvManager: drives one attempt at one task from reset to its outcome (ROLLART section 6.1).

The invariants: `run` returns trajectories with an outcome whatever the environment, the engine or
the clock does; generated tokens are never encoded again; the environment is closed on every path;
tokens that were generated are kept, also those of an action that was interrupted.
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
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.protocols import Admission, Cancellation, RunningAttempt
from rollart_flow.control.rollout.dialogue import Dialogue
from rollart_flow.control.rollout.dispatch import FREE, Dispatch, StageSlot
from rollart_flow.control.rollout.guarded_env import GuardedEnvironment
from rollart_flow.control.rollout.interrupts import (
    AttemptEndedError,
    AttemptResult,
    Interruptible,
    TimeLimit,
    failed,
)
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
    Trajectory,
)
from rollart_flow.types.branching import StepObservation


class EnvManager:
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

    # A process holds many managers at once; with slots, each is one allocation instead of two.
    __slots__ = (
        "_admission", "_attempt", "_dialogue", "_env_version", "_environment", "_limits",
        "_lockstep", "_placement", "_proxy", "_report", "_session", "_slot",
        "_time_limit", "_version", "_wall", "_worker", "assignment",
    )  # fmt: skip

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
        self.assignment = assignment
        self._proxy = proxy
        self._limits = limits
        self._wall = wall
        self._env_version = env_version
        self._admission = admission
        self._worker = worker
        self._lockstep = dispatch.lockstep
        self._slot = dispatch.slot(assignment)
        self._placement = dispatch.placement(assignment)
        self._attempt = Interruptible(proxy.abort)
        self._time_limit = TimeLimit(self._attempt, limits.trajectory_timeout_s)
        # An attempt may run twice at once: again after its rollout worker was lost, or assigned
        # again by a restarted scheduler. The requests of both runs need different ids.
        self._session = f"{assignment.trajectory_id}@{worker}.{proxy.session()}"
        self._dialogue = Dialogue(codec, limits)
        self._environment = GuardedEnvironment(
            make, assignment.trajectory_id, limits.step_timeout_s, self._attempt
        )
        self._report: asyncio.Task[None] | None = None
        self._version: int | None = None

    def cancel(self, cancellation: Cancellation) -> None:
        """End the attempt now, whatever it waits for; only the first call has an effect."""
        self._attempt.interrupt(AttemptResult(cancellation.outcome, cancellation.reason))

    @property
    def state(self) -> RunningAttempt:
        """The attempt as a restarted scheduler has to know it."""
        assignment = self.assignment
        return RunningAttempt(
            assignment.trajectory_id, assignment.group_id, assignment.attempt, self._version
        )

    async def run(self) -> tuple[Trajectory, ...]:
        """Run the attempt and return its unscored branches; raises only errors of `admission`."""
        created_at = self._now()
        try:
            ending = await self._attempt.run(self._drive())
        finally:
            self._time_limit.pause()
            finished_at = self._now()
            close_error = await self._clean_up()
        if ending.error is None and close_error is not None:
            ending = replace(ending, error=close_error)
        return tuple(
            recorder.trajectory(
                self.assignment,
                ending,
                created_at=created_at,
                finished_at=finished_at,
                reset_s=0.0 if columns["branch"] else self._environment.reset_s,
                env_version=self._env_version,
                solved=self._environment.solved,
                columns=columns,
            )
            for recorder, columns in self._dialogue.rows(self.assignment.trajectory_id)
        )

    def _now(self) -> datetime:
        return self._wall(asyncio.get_running_loop().time())

    def _drive(self) -> Coroutine[Any, Any, AttemptResult]:
        """Return the coroutine of the attempt, which passes through stages if there are any."""
        return self._episode() if self._slot is None else self._staged(self._slot)

    async def _staged(self, slot: StageSlot) -> AttemptResult:
        try:
            await slot.begin()
            return await self._episode()
        finally:
            slot.leave()

    async def _refused(self) -> AttemptResult | None:
        """Return the result of an attempt that gets no permission, or None if it may start."""
        if self._admission is None:
            return None
        trajectory_id = self.assignment.trajectory_id
        with waiting(f"permit({trajectory_id})"):
            refused = await self._admission.permit(trajectory_id, self._worker)
        return None if refused is None else AttemptResult(refused.outcome, refused.reason)

    async def _episode(self) -> AttemptResult:
        """Run the attempt; the time limit holds from its permission to its end."""
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
            prompt_ids=tuple(recorder.token_ids),
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

    def _first_token(self, version: int) -> None:
        """Tell the scheduler, without waiting for it, which version started the trajectory."""
        if self._admission is not None and self._report is None:
            self._version = version
            started = self._admission.started(self.assignment.trajectory_id, version)
            self._report = asyncio.ensure_future(started)

    async def _clean_up(self) -> str | None:
        """Release all resources, and return an error of closing the environment, or None."""
        self._proxy.release(self.assignment.trajectory_id)
        if self._report is not None:
            # The commit tells the version too, so an unfinished report need not be awaited.
            self._report.cancel()
            await asyncio.gather(self._report, return_exceptions=True)
        return await self._environment.close()

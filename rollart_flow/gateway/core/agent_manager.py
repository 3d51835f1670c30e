"""AgentManager: drives one attempt of an agent that is a program of its own.

The counterpart of `EnvManager` for programs that ask for answers at the gateway. An attempt has
three bounded stages, each with a limit of time: INIT opens the box with the task, RUN starts the
program in it, POSTRUN judges what the program left. The stages of one process overlap across
attempts (Polar; the dispatcher of SkyRL-Agent).

The invariants, beside those of `AttemptManager`: an attempt that is cancelled while its program
runs gives it a last answer in its own wire, and time to end, before the box is closed; no attempt
holds places of two stages; when the rows are made, no call of the attempt is under way.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rollart_flow.control.environment import AsyncEnvironment, ChatCodec
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.rollout.attempt_manager import AttemptContext, AttemptManager
from rollart_flow.control.rollout.dispatch import FifoSemaphore, StagePlace
from rollart_flow.control.rollout.interrupts import AttemptResult
from rollart_flow.control.rollout.recorder import Recorder
from rollart_flow.gateway.core.agent_ending import ProgramEnd, ending_of, said_by
from rollart_flow.gateway.core.capture_limits import CaptureLimits
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.gateway.core.stored import with_exchanges
from rollart_flow.types import Assignment, AttemptLimits, Outcome, Trajectory

_OVER = "The time for this task is over. Stop here."
_RUNNING = "run"


class KeyHolder(Protocol):
    """A gateway, as far as an attempt needs it."""

    def open(self, session: CaptureSession) -> str:
        """Return a new key with which clients reach a session."""

    def close(self, key: str) -> object:
        """Refuse all further requests with a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """Limits of the stages of one attempt."""

    init_s: float
    run_s: float
    judge_s: float
    grace_s: float
    """Time in which a program has to end after its last answer, before it is killed [s]."""

    @property
    def longest_s(self) -> float:
        """Limit above that of each stage, the time to kill a program included."""
        return max(self.init_s, self.run_s, self.judge_s) + 3 * self.grace_s


class AgentStages:
    """The places of the stages of one process.

    Args:
        init: attempts whose boxes are being opened, or wait for a place to run.
        run: attempts whose programs run, or wait for a place to be judged.
        judge: attempts that are being judged.
    """

    def __init__(self, init: int, run: int, judge: int) -> None:
        self.init = FifoSemaphore("place to open a box", init)
        self.run = FifoSemaphore("place to run an agent", run)
        self.judge = FifoSemaphore("place to judge", judge)


class AgentManager(AttemptManager):
    """Runs a single attempt.

    Args:
        assignment: the attempt.
        make: makes its environment, whose steps are the stages; `harness.environment` describes
            them.
        codec: codec of the policy.
        limits: limits of the attempt.
        context: parts that the attempts of a rollout worker share.
        gateway: gives the session of the attempt a key.
        capture: limits of the session.
        stages: places of the stages, shared by the attempts of a process.
        stage_limits: limits of the stages.
    """

    __slots__ = (
        "_capture", "_codec", "_gateway", "_grace", "_judge_s", "_key", "_late", "_place",
        "_placement", "_reward", "_session_limits", "_stage_limits", "_stages",
    )  # fmt: skip

    def __init__(
        self,
        assignment: Assignment,
        make: Callable[[], AsyncEnvironment],
        codec: ChatCodec,
        limits: AttemptLimits,
        context: AttemptContext,
        *,
        gateway: KeyHolder,
        capture: CaptureLimits,
        stages: AgentStages,
        stage_limits: StageLimits,
    ) -> None:
        super().__init__(assignment, make, limits, context, abort=self._hang_up)
        self._codec = codec
        self._gateway = gateway
        self._session_limits = capture
        self._stages = stages
        self._stage_limits = stage_limits
        self._place = StagePlace(assignment.trajectory_id)
        self._placement = context.dispatch.placement(assignment)
        self._capture: CaptureSession | None = None
        self._key = ""
        self._late = False
        self._reward, self._judge_s = 0.0, 0.0
        self._grace: asyncio.TimerHandle | None = None

    async def run(self) -> tuple[Trajectory, ...]:
        """Run the attempt and return its unscored branches with its calls."""
        branches = await super().run()
        if self._capture is None:
            return branches
        return with_exchanges(branches, self._capture.exchanges, self._codec, self._wall)

    async def _drive(self) -> AttemptResult:
        """Pass through the stages; a place is left for the next one, or at the end."""
        try:
            await self._place.move(self._stages.init)
            if (refused := await self._refused()) is not None:
                return refused
            return await self._staged()
        finally:
            self._place.leave()

    async def _staged(self) -> AttemptResult:
        assignment, environment = self.assignment, self._environment
        environment.limit_calls(self._stage_limits.init_s)
        await environment.reset(assignment.env_seed, assignment.task.payload)
        if (refused := await self._until_cleared()) is not None:
            return refused
        self._open_session()
        while True:
            await self._place.move(self._stages.run)
            ending, judges = await self._run()
            if not judges:
                return ending
            await self._place.move(self._stages.judge)
            if await self._judge(last=ending.outcome is not Outcome.COMPLETED):
                return ending
            # Those who wait to be judged hold places to run: to wait for one with a place to judge
            # would be a circle.
            self._place.leave()

    async def _judge(self, *, last: bool) -> bool:
        """Judge what the program left; return whether the attempt ends with it."""
        self._environment.limit_calls(self._stage_limits.judge_s)
        exchanges = () if self._capture is None else self._capture.exchanges
        action = json.dumps({"judge": {"last": last, "said": said_by(exchanges)}})
        answer = await self._environment.step(action, "judging")
        self._reward += answer.reward
        self._judge_s += self._environment.call_s
        return answer.terminated

    def _open_session(self) -> None:
        capture = CaptureSession(
            self.assignment,
            self._codec,
            self._proxy,
            self._limits,
            self._session_limits,
            name=self._session,
            on_first=self._first_token,
            placement=self._placement,
        )
        self._capture, self._key = capture, self._gateway.open(capture)

    async def _run(self) -> tuple[AttemptResult, bool]:
        """Run the program to its end; return its ending, and whether what it left is judged."""
        assert self._capture is not None, "a session is opened before the program starts"
        bounds, loop = self._stage_limits, asyncio.get_running_loop()
        self._environment.limit_calls(bounds.run_s + 2 * bounds.grace_s)
        named = self._environment.reset_info.get("limit_s")
        run_s = min(bounds.run_s, named) if isinstance(named, int | float) else bounds.run_s
        limit = loop.call_later(run_s, self._end_time)
        self._attempt.generating = _RUNNING
        try:
            answer = await self._environment.step(json.dumps({"run": self._key}), "the agent")
        finally:
            self._attempt.generating = None
            limit.cancel()
            if self._grace is not None:
                self._grace.cancel()
        program = ProgramEnd.of(answer.info)
        return ending_of(program, self._capture.exchanges, late=self._late)

    def _end_time(self) -> None:
        """Give the program its last answer, since its time is over."""
        self._late = True
        if self._capture is not None:
            self._capture.finish(_OVER)

    def _hang_up(self, _: str) -> None:
        """Give the program its last answer, since the attempt has an ending; kill it if it stays.

        `Interruptible` calls it in place of a cancellation while the program runs.
        """
        if self._capture is not None:
            self._capture.finish(_OVER)
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(self._stage_limits.grace_s, self._attempt.break_off)

    async def _end_session(self) -> None:
        """Abort what is under way, keep its tokens, and refuse all further calls."""
        if self._key:
            key, self._key = self._key, ""
            assert self._capture is not None, "a key is that of a session"
            self._capture.finish(_OVER)
            with waiting(f"calls({self.assignment.trajectory_id})"):
                await self._capture.seal()
            self._gateway.close(key)

    def _rows(self) -> list[tuple[Recorder, dict[str, Any]]]:
        name = self.assignment.trajectory_id
        rows = [] if self._capture is None else self._capture.rows(name)
        for recorder, _ in rows[:1]:
            if recorder.own:  # the last turn of the first branch has the reward of the attempt
                recorder.own[-1].reward += self._reward
                recorder.own[-1].step_s += self._judge_s
        return rows or [(Recorder(), {"trajectory_id": name, "branch": 0})]

    async def _clean_up(self) -> str | None:
        await self._end_session()
        return await super()._clean_up()

"""GuardedEnvironment: converts errors and timeouts of an environment to attempt results.

Errors of users' environments are converted only here. The invariant: no call of an
environment lasts longer than its time limit, and none raises anything but `AttemptEndedError`.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

from rollart_flow.control.environment import (
    AsyncEnvironment,
    SlowStart,
    may_converse,
    starts_slowly,
)
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.rollout.env_checks import (
    ResetAnswer,
    StepAnswer,
    checked_reset,
    checked_step,
)
from rollart_flow.control.rollout.interrupts import (
    AttemptEndedError,
    AttemptResult,
    CallLimit,
    Interruptible,
    failed,
)
from rollart_flow.errors import EnvironmentTimeoutError
from rollart_flow.text import one_line
from rollart_flow.timeouts import timeout
from rollart_flow.types import Action, Observation, Outcome, Reason, Tool
from rollart_flow.types.verdict_checks import checked_report
from rollart_flow.types.verdicts import AttemptReport

START_S = 300.0
"""Longest start of an environment's process, with all imports, and the wait for its turn [s]."""


class _Guard:
    """Context manager over one call of an environment at a time.

    Raises:
        AttemptEndedError: the call raised.
    """

    __slots__ = ("_call", "_name", "_started", "_wait", "limit", "seconds")

    def __init__(self, name: str, limit: CallLimit) -> None:
        self._name = name
        self._call = ""
        self._started = 0.0
        self._wait: AbstractContextManager[None] = nullcontext()
        self.limit = limit
        self.seconds = 0.0
        """Seconds of the last call."""

    def over(self, call: str) -> "_Guard":
        """Set the name of the guarded call and return the context manager."""
        self._call = call
        return self

    def __enter__(self) -> None:
        self._started = asyncio.get_running_loop().time()
        self._wait = waiting(f"{self._call}({self._name})")
        self._wait.__enter__()
        self.limit.begin(self._call)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.limit.end()
        self._wait.__exit__(kind, error, trace)
        self.seconds = asyncio.get_running_loop().time() - self._started
        if isinstance(error, EnvironmentTimeoutError):
            late = AttemptResult(Outcome.TIMED_OUT, Reason.ENVIRONMENT_TIMEOUT, one_line(error))
            raise AttemptEndedError(late) from error
        # Users write environments; whatever they raise is data, `sys.exit()` too.
        if isinstance(error, Exception | SystemExit):
            raise failed(Reason.ENVIRONMENT_ERROR, self._call, error) from error


class GuardedEnvironment:
    """One environment for one attempt.

    Args:
        make: makes the environment.
        name: owner of the environment, for the names of waits.
        timeout_s: limit of each call.
        attempt: attempt to interrupt if a call takes longer.
    """

    __slots__ = (
        "_attempt", "_environment", "_guard", "_make", "_name", "_timeout_s", "report",
        "reset_info", "reset_s", "solved",
    )  # fmt: skip

    def __init__(
        self,
        make: Callable[[], AsyncEnvironment],
        name: str,
        timeout_s: float,
        attempt: Interruptible,
    ) -> None:
        self._make = make
        self._name = name
        self._timeout_s = timeout_s
        self._attempt = attempt
        self._guard = _Guard(name, CallLimit(attempt, timeout_s))
        self._environment: AsyncEnvironment | None = None
        self.reset_info: Mapping[str, object] = {}
        """The `info` of the reset."""
        self.reset_s = 0.0
        """Seconds of creating and resetting the environment."""
        self.solved: bool | None = None
        """Last value of `info["success"]`, or None."""
        self.report: AttemptReport | None = None
        """Report of the environment on the attempt, such as verdicts; None if there is none."""

    def limit_calls(self, limit_s: float) -> None:
        """Set the limit of each call from now on [s]."""
        self._guard.limit.change(limit_s)

    async def reset(self, seed: int, task: str) -> Observation:
        """Create and reset the environment, and return the first observation."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with self._guard.over("reset"):
                environment = self._environment = self._make()
            if starts_slowly(environment):
                await self._start(environment)
            with self._guard.over("reset"):
                answer = await environment.reset(seed, task)
                if type(answer) is not ResetAnswer:  # which adapters make of what they checked
                    answer = checked_reset(answer)
        finally:
            self.reset_s = loop.time() - began
        self._attempt.check()
        self.reset_info = answer.info
        return answer.observation

    @property
    def tools(self) -> Sequence[Tool] | None:
        """Tools of the episode, after its reset; None if the environment takes text."""
        environment = self._environment
        return environment.tools if may_converse(environment) else None

    async def _start(self, environment: SlowStart) -> None:
        """Start the environment, whose imports are not limited by the time of a step."""
        guard = _Guard(self._name, CallLimit(self._attempt, max(START_S, self._timeout_s)))
        try:
            with guard.over("start"):
                await environment.start()
        finally:
            guard.limit.close()
        self._attempt.check()

    async def step(self, action: str | Action, call: str = "step") -> StepAnswer:
        """Apply an action and return the checked answer.

        Args:
            action: the action.
            call: name of the step in errors.
        """
        if self._environment is None:
            raise ValueError("step comes after reset")
        with self._guard.over(call):
            answer = await self._environment.step(action)
            if type(answer) is not StepAnswer:  # which adapters make of what they checked
                answer = checked_step(answer)
            report = checked_report(answer.info)
        if report is not None:
            self.report = report if self.report is None else self.report.updated(report)
        self._attempt.check()
        success = answer.info.get("success")
        if success is not None:
            self.solved = bool(success)
        return answer

    @property
    def call_s(self) -> float:
        """Seconds of the last reset or step."""
        return self._guard.seconds

    async def close(self) -> str | None:
        """Close the environment, and return an error of closing in one line, or None."""
        self._guard.limit.close()
        environment, self._environment = self._environment, None
        if environment is None:
            return None
        limit_s = None if self._timeout_s == math.inf else self._timeout_s
        try:
            with waiting(f"close({self._name})"):
                async with timeout(limit_s):
                    await environment.close()
        except TimeoutError:
            return f"close took over {self._timeout_s:g} s"
        except Exception as error:  # noqa: BLE001  the outcome stands, the error is kept
            return failed(Reason.ENVIRONMENT_ERROR, "close", error).ending.error
        return None

"""An environment behind a guard: whatever it does becomes an answer or an ending.

The boundary where errors of users' environments are converted, once. The invariant: no call of an
environment lasts longer than its time limit, and none raises anything but `EndedError`.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollart_flow.control.answers import StepAnswer, checked_reset, checked_step
from rollart_flow.control.interrupts import EndedError, Ending, Interruptible, failed
from rollart_flow.control.ports import Environment
from rollart_flow.control.waits import waiting
from rollart_flow.errors import EnvironmentTimeoutError
from rollart_flow.types import Outcome, Reason

T = TypeVar("T")


class GuardedEnvironment:
    """One environment for one attempt.

    Args:
        make: makes the environment.
        name: whose environment it is, in names of waits.
        timeout_s: limit of each call.
        attempt: interrupted where a call takes longer.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        name: str,
        timeout_s: float,
        attempt: Interruptible,
    ) -> None:
        self._make = make
        self._name = name
        self._timeout_s = timeout_s
        self._attempt = attempt
        self._environment: Environment | None = None
        self.reset_s = 0.0
        """Seconds that making and reset took."""
        self.step_s = 0.0
        """Seconds that the last step took."""
        self.solved: bool | None = None
        """What `info["success"]` said last."""

    async def reset(self, seed: int, task: str) -> str:
        """Make and reset the environment; the first observation."""
        started = asyncio.get_running_loop().time()
        try:
            answer = await self._call("reset", lambda: self._first(seed, task), checked_reset)
        finally:
            self.reset_s = asyncio.get_running_loop().time() - started
        return answer.observation

    async def _first(self, seed: int, task: str) -> object:
        self._environment = self._make()
        return await self._environment.reset(seed, task)

    async def step(self, action: str) -> StepAnswer:
        """Apply an action."""
        environment = self._environment
        if environment is None:
            raise ValueError("step comes after reset")
        started = asyncio.get_running_loop().time()
        try:
            answer = await self._call("step", lambda: environment.step(action), checked_step)
        finally:
            self.step_s = asyncio.get_running_loop().time() - started
        if "success" in answer.info:
            self.solved = bool(answer.info["success"])
        return answer

    async def _call(
        self, what: str, call: Callable[[], Awaitable[object]], check: Callable[[object], T]
    ) -> T:
        late = f"{what} took over {self._timeout_s:g} s"
        ending = Ending(Outcome.TIMED_OUT, Reason.ENVIRONMENT_TIMEOUT, late)
        timer = self._timer(ending)
        try:
            with waiting(f"{what}({self._name})"):
                answer = check(await call())
        except EnvironmentTimeoutError as error:
            timed_out = Ending(Outcome.TIMED_OUT, Reason.ENVIRONMENT_TIMEOUT, error.message)
            raise EndedError(timed_out) from error
        except Exception as error:  # users write environments; whatever they raise is data
            raise failed(Reason.ENVIRONMENT_ERROR, what, error) from error
        finally:
            if timer is not None:
                timer.cancel()
        self._attempt.check()
        return answer

    def _timer(self, ending: Ending) -> asyncio.TimerHandle | None:
        if self._timeout_s == math.inf:
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(self._timeout_s, self._attempt.interrupt, ending)

    async def close(self) -> str | None:
        """Close the environment; what went wrong with that in one line, or None."""
        environment, self._environment = self._environment, None
        if environment is None:
            return None
        limit_s = None if self._timeout_s == math.inf else self._timeout_s
        try:
            with waiting(f"close({self._name})"):
                async with asyncio.timeout(limit_s):
                    await environment.close()
        except TimeoutError:
            return f"close took over {self._timeout_s:g} s"
        except Exception as error:  # noqa: BLE001  the outcome stands, the error is kept
            return failed(Reason.ENVIRONMENT_ERROR, "close", error).ending.error
        return None

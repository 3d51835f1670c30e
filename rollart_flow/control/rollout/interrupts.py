"""Results of attempts, and interruption of attempts from outside at any wait.

The invariant: the first ending counts, and an interruption never escapes as a cancellation of the
task that runs the attempt; a cancellation of that task from elsewhere always does.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rollart_flow.errors import RollartError
from rollart_flow.text import one_line
from rollart_flow.types import Outcome, Reason


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Outcome of an attempt, with reason and error."""

    outcome: Outcome
    reason: Reason | None = None
    error: str | None = None


class AttemptEndedError(Exception):
    """Raised to end an attempt with its result."""

    def __init__(self, ending: AttemptResult) -> None:
        super().__init__(ending)
        self.ending = ending


def failed(reason: Reason, what: str, error: BaseException) -> AttemptEndedError:
    """Return the exception for an attempt that failed with an error, described in one line.

    An error of this library is described by its own message.
    """
    said = one_line(error)
    if not isinstance(error, RollartError):
        said = one_line(f"{what} raised {type(error).__name__}: {said}")
    return AttemptEndedError(AttemptResult(Outcome.FAILED, reason, said))


class Interruptible:
    """Runs an attempt in the current task until it ends or is interrupted.

    Args:
        abort: ends the call in progress that `generating` names, so that it returns what it has,
            such as the tokens of a generation.
    """

    __slots__ = ("_abort", "_cancelled", "_task", "ending", "generating")

    def __init__(self, abort: Callable[[str], None]) -> None:
        self._abort = abort
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False
        self.generating: str | None = None
        """Name of the call in progress that `abort` ends, such as the id of a request."""
        self.ending: AttemptResult | None = None
        """Result, set once the attempt has ended or has to end."""

    def interrupt(self, ending: AttemptResult) -> None:
        """End the attempt now, whatever it waits for; without effect once it has an ending."""
        if self.ending is not None:
            return
        self.ending = ending
        if self.generating is not None:
            self._abort(self.generating)
        else:
            self.break_off()

    def break_off(self) -> None:
        """Cancel what an attempt that has to end waits for, also if it was to be aborted."""
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def check(self) -> None:
        """Raise the result if the attempt was interrupted during the last await.

        Raises:
            AttemptEndedError: the attempt is over.
        """
        if self.ending is not None:
            raise AttemptEndedError(self.ending)

    async def run(self, drive: Coroutine[Any, Any, AttemptResult]) -> AttemptResult:
        """Run the attempt and return its result, or the result of its interruption."""
        if self.ending is not None:
            drive.close()
            return self.ending
        self._task = task = asyncio.current_task()
        cancelling = task.cancelling() if task is not None else 0
        try:
            ended = await drive
        except AttemptEndedError as error:
            ended = error.ending
        except asyncio.CancelledError as error:
            ended = self._cancellation(error, task is None or task.cancelling() > cancelling)
        finally:
            self._task = None
        if self._cancelled and task is not None and task.uncancel() > cancelling:
            raise asyncio.CancelledError
        if self.ending is None:
            self.ending = ended
        return self.ending

    def _cancellation(self, error: asyncio.CancelledError, requested: bool) -> AttemptResult:
        """Return the result of a cancellation: an interruption, or an error of the environment."""
        if self._cancelled and self.ending is not None:
            return self.ending
        if requested:
            raise error
        return failed(Reason.ENVIRONMENT_ERROR, "the environment", error).ending


class TimeLimit:
    """Interrupts an attempt that takes too long; paused time does not count.

    Args:
        attempt: attempt to interrupt.
        limit_s: most seconds; math.inf for no limit.
    """

    __slots__ = ("_attempt", "_left_s", "_limit_s", "_timer")

    def __init__(self, attempt: Interruptible, limit_s: float) -> None:
        self._attempt = attempt
        self._limit_s = limit_s
        self._left_s = limit_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start or resume the timer."""
        if self._left_s == math.inf:
            return
        late = f"the trajectory took over {self._limit_s:g} s"
        ending = AttemptResult(Outcome.TIMED_OUT, Reason.TRAJECTORY_TIMEOUT, late)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._left_s, self._attempt.interrupt, ending)

    def pause(self) -> None:
        """Pause the timer until `start`."""
        if self._timer is not None:
            self._left_s = self._timer.when() - asyncio.get_running_loop().time()
            self._timer.cancel()
            self._timer = None


class CallLimit:
    """Interrupts an attempt whose environment takes too long over a call.

    Calls are many and seldom late: their limits share one timer, which looks again when it fires.

    Args:
        attempt: attempt to interrupt.
        limit_s: most seconds of each call; math.inf for no limit.
    """

    __slots__ = ("_attempt", "_call", "_due", "_limit_s", "_timer")

    def __init__(self, attempt: Interruptible, limit_s: float) -> None:
        self._attempt = attempt
        self._limit_s = limit_s
        self._call: str | None = None
        """Name of the call in progress, or None."""
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def change(self, limit_s: float) -> None:
        """Set the limit of the calls from now on [s]."""
        self.close()
        self._limit_s = limit_s

    def begin(self, call: str) -> None:
        """Start the time limit of a call."""
        if self._limit_s == math.inf:
            return
        loop = asyncio.get_running_loop()
        self._call = call
        self._due = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_at(self._due, self._look)

    def end(self) -> None:
        """End the time limit of the call."""
        self._call = None

    def _look(self) -> None:
        """Interrupt a call that is late; otherwise reschedule the timer."""
        self._timer = None
        if self._call is None:
            return
        loop = asyncio.get_running_loop()
        if self._due > loop.time():
            self._timer = loop.call_at(self._due, self._look)
            return
        late = f"{self._call} took over {self._limit_s:g} s"
        self._attempt.interrupt(AttemptResult(Outcome.TIMED_OUT, Reason.ENVIRONMENT_TIMEOUT, late))

    def close(self) -> None:
        """Cancel the timer after the last call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

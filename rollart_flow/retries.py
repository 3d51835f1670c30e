"""Repetition of an operation whose error may pass, after random pauses that grow.

The caller names the errors that may pass; all others are raised at once. The invariant: no
attempt begins later than `RetryPolicy.limit_s` after the first failure. A process that has to end
does not repeat anything (`unrepeated`).
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import TypeVar

from rollart_flow.blocked import blocking
from rollart_flow.errors import RollartError
from rollart_flow.text import counted, one_line
from rollart_flow.types import Retried

T = TypeVar("T")
Passing = type[Exception] | tuple[type[Exception], ...]
"""Errors that may pass. An error that did not is raised again with a message alone."""
_ending = threading.Event()
"""Set while nothing is repeated in the threads of this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """For how long, and how fast, a failed operation is repeated."""

    limit_s: float = 60.0
    """Seconds after the first failure after which no attempt begins."""
    backoff_s: float = 0.5
    """Maximum pause after the first failure; it doubles with each failure."""
    backoff_cap_s: float = 10.0
    """Longest pause."""


DEFAULT = RetryPolicy()


@contextmanager
def unrepeated() -> Iterator[None]:
    """Raise the next failure of every operation in the threads of this process, since it ends."""
    _ending.set()
    try:
        yield
    finally:
        _ending.clear()


def pause_s(failures: int, backoff_s: float, cap_s: float, chance: Random) -> float:
    """Return a pause after this number of failures: uniformly random below a limit that doubles, so
    that operations that failed together are not repeated together."""
    return chance.uniform(0.0, min(backoff_s * 2.0 ** min(failures - 1, 64), cap_s))


def retried(
    what: str,
    call: Callable[[], T],
    passing: Passing,
    note: Callable[[Retried], None],
    policy: RetryPolicy = DEFAULT,
    *,
    sleep: Callable[[float], object] = _ending.wait,
    now: Callable[[], float] = time.monotonic,
) -> T:
    """Return the result of a call in this thread, repeated as long as an error may pass.

    The wait for it has a name (`blocked`).

    Args:
        what: description of the operation.
        call: the operation, which can be repeated.
        passing: errors that may pass.
        note: receives how often the operation failed, once it has succeeded.
        policy: pauses and limit.
        sleep: waits for some seconds, or until the process ends.
        now: returns the time in seconds.

    Raises:
        Exception: another error, or one that did not pass; its message has the number of attempts.
    """
    failures = _Failures(what, passing, note, policy, now)
    with blocking(failures):
        while True:
            with failures:
                return call()
            sleep(failures.pause_s)


async def retried_async(
    what: str,
    call: Callable[[], Awaitable[T]],
    passing: Passing,
    note: Callable[[Retried], None],
    policy: RetryPolicy = DEFAULT,
    *,
    chance: Random | None = None,
) -> T:
    """Return the result of an awaitable call, as `retried`; time comes from the event loop.

    A simulation passes the source of all its randomness as `chance`.
    """
    now = asyncio.get_running_loop().time
    failures = _Failures(what, passing, note, policy, now, chance)
    while True:
        with failures:
            return await call()
        await asyncio.sleep(failures.pause_s)


class _Failures:
    """The failures of one operation so far; the context of each attempt at it, which suppresses an
    error that may pass."""

    def __init__(
        self,
        what: str,
        passing: Passing,
        note: Callable[[Retried], None],
        policy: RetryPolicy,
        now: Callable[[], float],
        chance: Random | None = None,
    ) -> None:
        self._what = what
        self._passing = passing
        self._note = note
        self._policy = policy
        self._now = now
        self._chance = chance or Random()
        self._count = 0
        self._first = 0.0
        self._last = ""
        self.pause_s = 0.0
        """Pause before the next attempt."""

    def __str__(self) -> str:
        """Return the name of the wait for the operation."""
        return (
            f"{self._what} (failed {counted(self._count, 'time')}: {self._last})"
            if self._count
            else self._what
        )

    def __enter__(self) -> None:
        """Begin an attempt."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Suppress an error if the operation is to be repeated, and report a late success."""
        if isinstance(error, self._passing):
            self._add(error)
            return True
        if error is None and self._count:
            seconds = self._now() - self._first
            self._note(Retried(self._what, self._count, seconds, self._last))
        return False

    def _add(self, error: Exception) -> None:
        now, policy = self._now(), self._policy
        self._first = self._first if self._count else now
        self._count += 1
        said = error.message if isinstance(error, RollartError) else str(error)
        self._last = one_line(said)
        self.pause_s = pause_s(self._count, policy.backoff_s, policy.backoff_cap_s, self._chance)
        if _ending.is_set() or now + self.pause_s > self._first + policy.limit_s:
            seconds = now - self._first
            raise type(error)(
                f"{self._last} (attempts: {self._count} in {seconds:.0f} s)"
            ) from error

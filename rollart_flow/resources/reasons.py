"""Errors of calls between processes, and their reasons in one line.

Without Ray in this process there are no such errors: actors of this process raise their own.
"""

import re
import sys

from rollart_flow.errors import RollartError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_END_OF_TRACEBACK = re.compile(r"[A-Za-z_][\w.]*: \S")
_OURS = re.compile(rf"{re.escape(RollartError.__module__)}\.\w+: ")
"""How a traceback in text begins to name an error of this library, whose message says all."""


def failures(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the class of all errors of Ray, and other classes, for an `except` clause."""
    ray = sys.modules.get("ray")
    return others if ray is None else (ray.exceptions.RayError, *others)


def deaths() -> tuple[type[Exception], ...]:
    """Return the class of the errors of calls whose actor has died for good."""
    ray = sys.modules.get("ray")
    return () if ray is None else (ray.exceptions.ActorDiedError,)


def unreachable() -> tuple[type[Exception], ...]:
    """Return the classes of the errors of calls that did not reach their actor."""
    ray = sys.modules.get("ray")
    return () if ray is None else (*deaths(), ray.exceptions.ActorUnavailableError)


def reason(error: BaseException) -> str:
    """Return one line about an error.

    An error that crossed a process is wrapped, possibly several times; the innermost error of this
    library describes it best. Without one, the first traceback in Ray's text tells the cause.
    """
    ours = _of_this_library(error)
    if ours is not None:
        return ours.message
    lines = [line for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    ends = [line for line in lines if _END_OF_TRACEBACK.match(line)]
    if isinstance(error, failures()) and ends:
        return _OURS.sub("", ends[0])
    return lines[0].strip() if lines else type(error).__name__


def is_ours(error: BaseException) -> bool:
    """Return whether an error is or wraps an error of this library."""
    return _of_this_library(error) is not None


def _of_this_library(error: BaseException) -> RollartError | None:
    """Return the innermost error of this library; Ray's wrapper counts as the wrapped error."""
    found: RollartError | None = None
    seen: BaseException | None = error
    while seen is not None:
        inner = getattr(seen, "cause", None)
        if isinstance(seen, RollartError) and not isinstance(inner, BaseException):
            found = seen
        seen = inner if isinstance(inner, BaseException) else seen.__cause__
    return found

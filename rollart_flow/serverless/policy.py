"""How a reward endpoint is called: how often, how long, how many at a time.

A policy is frozen settings; `caller` carries it out.
"""

import math
from dataclasses import dataclass, fields

from rollart_flow.errors import SettingsError

_COUNTS = frozenset({"attempts", "max_concurrent", "breaker_failures"})
_OPTIONAL = frozenset({"attempt_timeout_s", "hedge_after_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """Retries, hedging, circuit breaker and limits of one endpoint.

    Raises:
        SettingsError: a value is out of its range.
    """

    deadline_s: float = 30.0
    """Seconds for one trajectory, once it has its place: all attempts, pauses and waits for a
    broken endpoint. What has no answer by then is timed out."""
    attempt_timeout_s: float | None = None
    """Seconds after which an attempt, with its hedge, is given up and made again; None: it may take
    all that is left until the deadline."""
    attempts: int = 8
    """Most attempts at one trajectory; a hedge belongs to the attempt that it hedges."""
    backoff_s: float = 0.2
    """Longest pause after the first failed attempt; it doubles with each. The pause itself is drawn
    evenly from zero to that, so that calls which failed together do not come back together."""
    backoff_cap_s: float = 10.0
    """The longest pause stops growing here. An endpoint's own Retry-After comes on top."""
    hedge_after_s: float | None = 5.0
    """Seconds without an answer after which the same request is sent a second time; the first
    answer wins. None: never."""
    max_concurrent: int = 64
    """Trajectories at a time from this process; hedges come on top."""
    breaker_failures: int = 5
    """Attempts in a row that have to fail for the endpoint to count as broken."""
    breaker_reset_s: float = 5.0
    """Seconds for which nothing is sent to a broken endpoint; then one attempt tries it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _COUNTS:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    raise SettingsError(f"{field.name} should be a whole number >= 1, not {value}")
            elif value is None and field.name in _OPTIONAL:
                continue
            elif not isinstance(value, int | float) or not 0 < value < math.inf:
                raise SettingsError(f"{field.name} should be seconds > 0, not {value}")

"""Settings for calls to a reward endpoint: retries, timeouts and concurrency.

A policy is immutable; `caller` executes it.
"""

from dataclasses import dataclass

from rollart_flow.fields import Count, Positive, check_fields
from rollart_flow.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """The retries, hedging, circuit breaker and limits of one endpoint.

    Raises:
        SettingsError: a value is out of its range.
    """

    deadline_s: Positive = 30.0
    """Seconds for one trajectory after it has a slot, including all attempts, pauses and waits for
    a broken endpoint. A call without an answer by then times out."""
    attempt_timeout_s: Positive | None = None
    """Seconds after which an attempt, including its hedge, is abandoned and repeated; None means
    that it may take all the time until the deadline."""
    attempts: Count = 8
    """Maximum number of attempts per trajectory; a hedge belongs to the attempt that it hedges."""
    backoff_s: Positive = 0.2
    """Maximum pause after the first failed attempt; it doubles with each attempt. The pause is
    uniformly random between zero and this value, so that calls that failed together are not
    repeated together."""
    backoff_cap_s: Positive = 10.0
    """Longest pause; a Retry-After time of the endpoint is added to it."""
    hedge_after_s: Positive | None = 5.0
    """Seconds without an answer after which the same request is sent a second time; the first
    answer wins. None means never."""
    max_concurrent: Count = 64
    """Maximum number of concurrent trajectories from this process; hedges are not counted."""
    breaker_failures: Count = 5
    """Number of consecutive failed attempts after which the endpoint is considered broken."""
    breaker_reset_s: Positive = 5.0
    """Seconds during which a broken endpoint gets no calls; then one attempt tries it."""
    token: Secret | None = None
    """Bearer token that an `http`, `https` or `fc` endpoint requires, by its variable."""

    def __post_init__(self) -> None:
        check_fields(self)

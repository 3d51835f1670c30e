"""Settings and requests of a pool of boxes, and the demand for boxes of one key."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rollart_flow.sandbox.base import SandboxSnapshot, SandboxSpec
from rollart_flow.sandbox.pool_boxes import BoxUser, PooledBox


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Names and bounds of a pool."""

    name: str = "sandbox"
    """Worker that holds the pool."""
    node: str = ""
    """Node of the worker."""
    variant: str = "bubblewrap"
    """Kind of its boxes, as named in `registry.SANDBOXES`."""
    maximum: int | None = None
    """Boxes at a time, without further boxes of attempts that hold one; None: no bound."""
    minimum: int = 0
    """Boxes that are kept although nobody has asked for them any more."""
    starts_at_once: int = 4
    """Boxes that start at the same time."""
    start_s: float = 120.0
    """Longest start of a box [s]."""
    start_tries: int = 3
    """Failed starts after which an attempt that waits for the box is given up."""
    backoff_s: float = 0.1
    """Time from a failed start to the next one of its key, which doubles with each failure [s]."""
    longest_backoff_s: float = 30.0
    """Bound of that time [s]."""
    health_s: float = 5.0
    """Longest answer of a box that is about to be handed out [s]."""
    idle_s: float = 60.0
    """Time after which boxes that nobody has asked for end [s]."""
    holder_s: float = 30.0
    """Time without a sign of life after which a process that holds boxes counts as gone [s]."""
    failures: int = 8
    """Failures of boxes of a task in a row after which the task gets no more of them."""


@dataclass(slots=True, eq=False)
class BoxDemand:
    """Attempts that want boxes of one key, and the boxes that are ready for them."""

    key: str
    spec: SandboxSpec
    snapshot: SandboxSnapshot | None
    domain: str = ""
    """Domain that asked last."""
    expected: set[str] = field(default_factory=set)
    """Sessions of the attempts that will ask."""
    asked: int = 0
    """Requests that wait."""
    starting: int = 0
    warm: deque[PooledBox] = field(default_factory=deque)
    """Boxes that are ready, the oldest first."""
    failures: int = 0
    """Failed starts in a row."""
    retry_at: float = 0.0
    """Time of the loop before which no box of the key starts."""
    _retry: asyncio.TimerHandle | None = None
    _retirement: asyncio.TimerHandle | None = None

    @property
    def supply(self) -> int:
        """Boxes that are ready or will be."""
        return len(self.warm) + self.starting

    @property
    def lacking(self) -> int:
        """Boxes to start."""
        return max(0, len(self.expected) + self.asked - self.supply)

    @property
    def surplus(self) -> int:
        """Boxes that nobody waits for or is expected to ask for."""
        return max(0, self.supply - len(self.expected) - self.asked)

    @property
    def idle(self) -> bool:
        """Whether nothing is known of the key that has to be remembered."""
        now = asyncio.get_running_loop().time()
        return not (self.expected or self.asked or self.supply) and self.retry_at <= now

    def back_off(self, first_s: float, longest_s: float) -> None:
        """Count a failed start, and let the next one wait, twice as long as the last time."""
        wait_s = min(longest_s, first_s * 2**self.failures)
        self.failures += 1
        self.retry_at = asyncio.get_running_loop().time() + wait_s

    def retry(self, then: Callable[[], None]) -> None:
        """Call a function when boxes of the key may start again."""
        loop = asyncio.get_running_loop()
        if self._retry is None or self._retry.when() <= loop.time():
            self._retry = loop.call_at(self.retry_at, then)

    def retire(self, idle_s: float, then: "Callable[[BoxDemand], None]") -> None:
        """Call a function once there has been a surplus of warm boxes for a time."""
        if not (self.surplus and self.warm):
            self._stop(self._retirement)
            self._retirement = None
        elif self._retirement is None:

            def due() -> None:
                self._retirement = None
                then(self)

            self._retirement = asyncio.get_running_loop().call_later(idle_s, due)

    def close(self) -> None:
        """Stop the timers."""
        self._stop(self._retry)
        self._stop(self._retirement)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def outliving(spec: SandboxSpec, lease_s: float) -> SandboxSpec:
    """Return a spec whose boxes outlive an attempt, which may get one that is half their age.

    Args:
        spec: the spec of the attempt's box.
        lease_s: limit of the attempt [s]; where it has none, the spec stays as it is.
    """
    longest_s = 2 * lease_s if math.isfinite(lease_s) else 0.0
    lifetime_s = max(spec.limits.lifetime_s, longest_s)
    return replace(spec, limits=replace(spec.limits, lifetime_s=lifetime_s))


@dataclass(slots=True, eq=False)
class BoxRequest:
    """An attempt that waits for a box."""

    user: BoxUser
    number: int
    """Number of the box among those of the attempt."""
    demand: BoxDemand
    further: bool
    """Whether the attempt holds a box already, so that it must not wait for those of others."""
    granted: "asyncio.Future[PooledBox]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    began: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    failures: int = 0
    """Starts of such boxes that failed while it waited."""
    unhealthy: int = 0
    """Boxes that were found dead when it was to get them."""

"""Staleness policies: how old a trajectory may be.

ROLLART section 6.2 (asynchronous bound) and ROLL Flash section 4.3 (asynchronous ratio): if the
engines serve version n, every trajectory that is trained on or kept was started by a version no
older than n - alpha. The invariant: no other module of this library compares versions to decide on
age.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from rollart_flow.errors import SettingsError


class Bound(Protocol):
    """Staleness bound of a schedule, used by the scheduler and by the buffer."""

    def staleness(self, version: int, start: int) -> int:
        """Return the number of versions from a trajectory's start to the served version."""
        ...

    def is_stale(self, version: int, start: int) -> bool:
        """Whether a trajectory of that start may no longer be kept while `version` is served."""
        ...

    def capacity(self, batch_size: int) -> int:
        """Return the largest number of trajectories in flight or buffered at once."""
        ...


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """Per-trajectory bound: `version - start <= ceil(alpha)`.

    Raises:
        SettingsError: alpha is negative or not a finite number.
    """

    alpha: float | Fraction = 1
    """Asynchronous ratio [versions], 0 or more; a fraction limits the trajectories in flight."""

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, int | float | Fraction) or isinstance(self.alpha, bool):
            raise SettingsError(f"alpha is {self.alpha!r}, but must be a number of at least 0")
        if not math.isfinite(self.alpha) or self.alpha < 0:
            raise SettingsError(f"alpha is {self.alpha}, but must be finite and at least 0")

    @property
    def bound(self) -> int:
        """Largest allowed staleness [versions]."""
        return math.ceil(self.alpha)

    def staleness(self, version: int, start: int) -> int:
        """Return the number of versions from a trajectory's start to the served version."""
        return version - start

    def is_stale(self, version: int, start: int) -> bool:
        """Whether a trajectory of that start violates the bound while `version` is served."""
        return self.staleness(version, start) > self.bound

    def capacity(self, batch_size: int) -> int:
        """Return floor((1 + alpha) * batch_size) trajectories (ROLL Flash section 4.3)."""
        return math.floor((1 + Fraction(str(self.alpha))) * batch_size)


@dataclass(frozen=True, slots=True)
class StartBound(StalenessPolicy):
    """Bound on the start of a trajectory only (AReaL, as described in ROLLART section 6.2).

    The trajectories in flight are limited as by `StalenessPolicy`; a trajectory that outlives
    several versions is neither aborted nor evicted.
    """

    def is_stale(self, version: int, start: int) -> bool:
        """Never stale: this schedule has no bound after the start."""
        return False

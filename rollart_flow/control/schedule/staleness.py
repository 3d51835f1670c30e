"""Bounds on the age of trajectories: how old one may be when it is trained on.

Every trajectory that is trained on or kept was started by a version no older than n - alpha. The
papers read n in two ways. ROLLART section 6.2 takes the version that the engines serve when the
batch is formed, so that `StalenessPolicy` bounds the staleness. ROLL Flash section 4.3 takes the
version that is trained, so that `LagBound` bounds the lag. The invariant: no other module of this
library compares versions to decide on age.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from rollart_flow.errors import SettingsError


class Bound(Protocol):
    """Bound of a schedule on the age of trajectories, used by the scheduler and by the buffer."""

    def reference(self, served: int, trained: int) -> int:
        """Return the version n from which ages are counted.

        Args:
            served: version that the engines serve when a batch is formed.
            trained: version of the weights that the batch trains.
        """
        ...

    def is_stale(self, version: int, start: int) -> bool:
        """Whether a trajectory of that start may no longer be kept once n is `version`."""
        ...

    def capacity(self, batch_size: int) -> int:
        """Return the largest number of trajectories in flight or buffered at once."""
        ...


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """Bound on the staleness of each trajectory: served version - start <= ceil(alpha).

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
        """Largest allowed age [versions]."""
        return math.ceil(self.alpha)

    def reference(self, served: int, trained: int) -> int:
        """Return the served version."""
        return served

    def is_stale(self, version: int, start: int) -> bool:
        """Whether a trajectory of that start violates the bound once n is `version`."""
        return version - start > self.bound

    def capacity(self, batch_size: int) -> int:
        """Return floor((1 + alpha) * batch_size) trajectories (ROLL Flash section 4.3)."""
        return math.floor((1 + Fraction(str(self.alpha))) * batch_size)


@dataclass(frozen=True, slots=True)
class LagBound(StalenessPolicy):
    """Bound on the lag of each trajectory: trained version - start <= ceil(alpha)."""

    def reference(self, served: int, trained: int) -> int:
        """Return the trained version."""
        return trained


@dataclass(frozen=True, slots=True)
class StartBound(StalenessPolicy):
    """Bound on the start of a trajectory only (AReaL, as described in ROLLART section 6.2).

    The trajectories in flight are limited as by `StalenessPolicy`; a trajectory that outlives
    several versions is neither aborted nor evicted.
    """

    def is_stale(self, version: int, start: int) -> bool:
        """Never stale: this schedule has no bound after the start."""
        return False

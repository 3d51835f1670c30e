"""What a stale trajectory still counts: factors on its loss. One variant, one class.

The bound drops what is too old (ROLLART section 6.2); among what it lets through, older
trajectories may count for less, since the variance of corrections grows with their lag (study notes
on staleness, seed 004, section 7). The invariant: a fresh trajectory counts in full, and an older
one never more than a younger one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.algorithms.base import Floats
from rollart_flow.errors import TrainerError
from rollart_flow.validation import check_count, check_number


class StalenessWeight(ABC):
    """Factors of one batch from how many versions its trajectories are behind."""

    @abstractmethod
    def __call__(self, batch: pa.Table) -> Floats:
        """Factors [trajectories] in (0, 1] from the column `staleness` of a batch [versions].

        Raises:
            TrainerError: a trajectory has no staleness.
        """


@dataclass(frozen=True, slots=True)
class Decayed(StalenessWeight):
    """factor^max(0, staleness - after): each version of lag takes the same share away."""

    factor: float = 0.9
    """What is left of a trajectory's weight with each version; 1 takes nothing away."""
    after: int = 0
    """Versions of lag that cost nothing."""

    def __post_init__(self) -> None:
        check_number("factor", self.factor, low=0, high=1, open_low=True)
        check_count("after", self.after, low=0)

    def __call__(self, batch: pa.Table) -> Floats:
        """See `StalenessWeight`."""
        lag = np.maximum(staleness_of(batch) - self.after, 0.0)
        return np.asarray(self.factor**lag)


def staleness_of(batch: pa.Table) -> Floats:
    """Versions that each trajectory is behind [trajectories].

    Raises:
        TrainerError: a trajectory has no staleness.
    """
    column = batch["staleness"]
    if column.null_count:
        at = pc.index(pc.is_null(column), value=True).as_py()
        raise TrainerError(f"trajectory {at} of the batch has no staleness")
    staleness: Floats = column.cast(pa.float64()).combine_chunks().to_numpy()
    return staleness

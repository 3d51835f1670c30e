"""Factors on the losses of stale trajectories.

The bound drops trajectories that are too old (ROLLART section 6.2). Of the others, older ones may
have a lower weight, since the variance of corrections grows with their lag. The invariant: a fresh
trajectory has the full weight, and an older one never more than a younger one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rollart_flow.algorithms.base import Floats
from rollart_flow.errors import TrainerError
from rollart_flow.fields import NotNegative, Within
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decayed(CheckedSettings):
    """factor^max(0, staleness - after): each version of lag multiplies the weight by `factor`."""

    factor: Annotated[float, Within(0, 1, open_low=True)] = 0.9
    """Factor on a trajectory's weight for each version; 1 changes nothing."""
    after: NotNegative = 0
    """Staleness up to which the weight is unchanged [versions]."""

    def __call__(self, batch: pa.Table) -> Floats:
        """Return factors [trajectories] in (0, 1] from the column `staleness` [versions]."""
        import numpy as np

        lag = np.maximum(staleness_of(batch) - self.after, 0.0)
        return np.asarray(self.factor**lag)


def staleness_of(batch: pa.Table) -> Floats:
    """Return the staleness of each trajectory [trajectories], in versions.

    Raises:
        TrainerError: a trajectory has no staleness.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch["staleness"]
    if column.null_count:
        at = pc.index(pc.is_null(column), value=True).as_py()
        raise TrainerError(f"trajectory {at} of the batch has no staleness")
    staleness: Floats = column.cast(pa.float64()).combine_chunks().to_numpy()
    return staleness

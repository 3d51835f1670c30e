"""Every action is an example to follow: rewards play no role."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollart_flow.algorithms.base import Advantages, Estimator


@dataclass(frozen=True, slots=True)
class Constant(Estimator):
    """1 for every trajectory."""

    def __call__(self, batch: pa.Table) -> Advantages:
        ones = tuple(np.ones(1, dtype=np.float32) for _ in range(batch.num_rows))
        return Advantages(ones, zero_variance_groups=0)

"""Rewards less the mean of the other attempts (RLOO).

    A_i = r_i - mean(r_j, j != i)               over the attempts of one group

Source: Ahmadian et al. 2024 (2402.14740), after Kool et al. 2019. The baseline of an attempt does
not depend on it, so that the gradient has no bias. A group of one attempt has an advantage of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Advantages, Estimator

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LeaveOneOut(Estimator):
    """Rewards less the mean of the other attempts."""

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import one_each, rewards_of, varied_groups

        rewards = rewards_of(batch)
        values = np.zeros(len(rewards))
        varied, constant = varied_groups(batch, rewards)
        for members in varied:
            of_group, size = rewards[members], len(members)
            values[members] = (of_group - of_group.mean()) * size / (size - 1)
        return Advantages(one_each(values), zero_variance_groups=constant)

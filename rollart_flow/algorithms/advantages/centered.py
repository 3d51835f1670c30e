"""Rewards less the mean of their group (Dr.GRPO).

    A_i = r_i - mean(r)                         over the attempts i of one group

Source: Dr.GRPO (2503.20783). Without division by the standard deviation, groups with almost equal
rewards have no larger influence than others. Its aggregation is `constant`. The invariant: a group
of equal rewards has advantages of exactly 0, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Advantages, Estimator

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GroupCentered(Estimator):
    """Rewards less the mean of their group."""

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import centered_in_groups, one_each

        values, constant = centered_in_groups(batch)
        return Advantages(one_each(values), zero_variance_groups=constant)

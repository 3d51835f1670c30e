"""Rewards less the mean of their group, normalized over the batch (REINFORCE++ with baseline).

    D_i = r_i - mean(r of the group of i)
    A_i = D_i / (std(D over the batch) + eps)

Source: REINFORCE++ (2501.03262), the variant with a baseline. One scale for all groups: GRPO's
scale for each group is biased for small groups. The mean of D over the batch is zero by itself. The
standard deviation is over trajectories, so that long ones have no larger influence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Advantages, Estimator
from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class BatchNormalized(Estimator):
    """Rewards less the mean of their group, on one scale for the batch."""

    eps: float = 1e-6
    """Added to the standard deviation over the batch."""

    def __post_init__(self) -> None:
        check_number("eps", self.eps, low=0, open_low=True)

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import centered_in_groups, one_each

        values, constant = centered_in_groups(batch)
        values /= values.std() + self.eps
        return Advantages(one_each(values), zero_variance_groups=constant)

"""Rewards normalized within each group (GRPO).

    A_i = (r_i - mean(r)) / (std(r) + eps)      over the attempts i of one group

Source: ROLL Flash (2510.11345) section 2.1, eq. 2. The standard deviation is that of the group
itself (divided by G, not G - 1). The invariant: a group of equal rewards has advantages of exactly
0, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Advantages, Estimator
from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GroupNormalized(Estimator):
    """Rewards normalized within each group."""

    eps: float = 1e-6
    """Added to the standard deviation of a group's rewards."""

    def __post_init__(self) -> None:
        check_number("eps", self.eps, low=0, open_low=True)

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import one_each, rewards_of, varied_groups

        rewards = rewards_of(batch)
        values = np.zeros(len(rewards))
        varied, constant = varied_groups(batch, rewards)
        for members in varied:
            of_group = rewards[members]
            values[members] = (of_group - of_group.mean()) / (of_group.std() + self.eps)
        return Advantages(one_each(values), zero_variance_groups=constant)

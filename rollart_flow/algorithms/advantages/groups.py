"""Advantages from the rewards of a group's attempts: one number for a whole trajectory.

The invariant: a group of equal rewards has advantages of exactly 0, and is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.algorithms.base import Advantages, Estimator
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GroupNormalized(CheckedSettings, Estimator):
    """Rewards normalized within each group (GRPO).

        A_i = (r_i - mean(r)) / (std(r) + eps)      over the attempts i of one group

    Source: ROLL Flash (2510.11345) section 2.1, eq. 2. The standard deviation is that of the group
    itself (divided by G, not G - 1).
    """

    eps: Positive = 1e-6
    """Added to the standard deviation of a group's rewards."""

    compares_groups: ClassVar[bool] = True

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import in_groups, one_each

        values, constant = in_groups(batch, lambda r: (r - r.mean()) / (r.std() + self.eps))
        return Advantages(one_each(values), constant)


@dataclass(frozen=True, slots=True)
class GroupCentered(Estimator):
    """Rewards less the mean of their group (Dr.GRPO).

        A_i = r_i - mean(r)                         over the attempts i of one group

    Source: Dr.GRPO (2503.20783). Without division by the standard deviation, groups with almost
    equal rewards have no larger influence than others. Its aggregation is `constant`.
    """

    compares_groups: ClassVar[bool] = True

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import in_groups, one_each

        values, constant = in_groups(batch, lambda r: r - r.mean())
        return Advantages(one_each(values), constant)


@dataclass(frozen=True, slots=True)
class LeaveOneOut(Estimator):
    """Rewards less the mean of the other attempts (RLOO).

        A_i = r_i - mean(r_j, j != i)               over the attempts of one group

    Source: Ahmadian et al. 2024 (2402.14740), after Kool et al. 2019. The baseline of an attempt
    does not depend on it, so that the gradient has no bias.
    """

    compares_groups: ClassVar[bool] = True

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import in_groups, one_each

        values, constant = in_groups(batch, lambda r: (r - r.mean()) * len(r) / (len(r) - 1))
        return Advantages(one_each(values), constant)


@dataclass(frozen=True, slots=True)
class BatchNormalized(CheckedSettings, Estimator):
    """Rewards less the mean of their group, on one scale for the batch (REINFORCE++, baseline).

        D_i = r_i - mean(r of the group of i)
        A_i = D_i / (std(D over the batch) + eps)

    Source: REINFORCE++ (2501.03262), the variant with a baseline. One scale for all groups: GRPO's
    scale for each group is biased for small groups. The mean of D over the batch is zero by itself.
    The standard deviation is over trajectories, so that long ones have no larger influence.
    """

    eps: Positive = 1e-6
    """Added to the standard deviation over the batch."""

    compares_groups: ClassVar[bool] = True

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import in_groups, one_each

        values, constant = in_groups(batch, lambda r: r - r.mean())
        return Advantages(one_each(values / (values.std() + self.eps)), constant)


@dataclass(frozen=True, slots=True)
class Constant(Estimator):
    """An advantage of 1 for every trajectory, for imitation of every action."""

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import one_each

        return Advantages(one_each(np.ones(batch.num_rows)), zero_variance_groups=0)

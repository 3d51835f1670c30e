"""Generalized advantage estimation (PPO with a critic).

    delta_t  = r_t + gamma V_(t+1) - V_t        over the action tokens t of one trajectory
    A_t      = delta_t + gamma lam A_(t+1)
    target_t = A_t + V_t

Source: Schulman et al. 2015 (1506.02438). A turn's reward belongs to its last action token. After
the last token V and A are 0, also if the episode was truncated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.algorithms.base import TARGETS, Advantages, Estimator
from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GAE(Estimator):
    """Generalized advantages from a critic's values."""

    needs_values: ClassVar[bool] = True

    gamma: float = 1.0
    """Discount of one token."""
    lam: float = 0.95
    """Weight of later errors: 0 uses the critic's next value, 1 the whole return."""

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, low=0, high=1)
        check_number("lam", self.lam, low=0, high=1)

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import rewards_of, varied_groups
        from rollart_flow.algorithms.advantages.tokens import action_values, actions_of, discounted

        actions = actions_of(batch)
        values = action_values(batch, "values", [len(each.turns) for each in actions])
        advantages = []
        for each, value in zip(actions, values, strict=True):
            delta = each.paid + self.gamma * np.append(value[1:], 0.0) - value
            advantages.append(discounted(delta, self.gamma * self.lam))
        _, constant = varied_groups(batch, rewards_of(batch))
        pairs = zip(advantages, values, strict=True)
        return Advantages(
            tuple(advantage.astype(np.float32) for advantage in advantages),
            zero_variance_groups=constant,
            columns={TARGETS: tuple((a + value).astype(np.float32) for a, value in pairs)},
        )

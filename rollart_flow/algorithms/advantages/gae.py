"""Generalized advantage estimation (PPO with a critic).

    delta_t  = r_t + gamma V_(t+1) - V_t        over the action tokens t of one trajectory
    A_t      = delta_t + gamma lam A_(t+1)
    target_t = A_t + V_t

Source: Schulman et al. 2015 (1506.02438). A turn's reward is paid to its last action token. Nothing
is worth anything after the last token, also where the episode was truncated: V and A are 0 there.
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
    """0 trusts the critic after one token, 1 not at all."""

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, low=0, high=1)
        check_number("lam", self.lam, low=0, high=1)

    def __call__(self, batch: pa.Table) -> Advantages:
        """Advantages and targets of a batch, each [action tokens].

        Raises:
            TrainerError: a trajectory has no reward, an action token outside its turns, or not one
                finite value for each.
        """
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

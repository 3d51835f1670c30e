"""Discounted returns of turns: the advantage of every token of a turn is the return from the turn.

    A_t = r_t + gamma A_(t+1)                   over the turns t of one trajectory

r_t is the environment's reward of the turn; the last turn also has the difference of the
trajectory's reward from the sum of all. Source: step-level MDP of agentic RL (SkyRL's transitions).
There is no baseline: a group of equal rewards is counted, and still has advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Advantages, Estimator
from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StepReturns(Estimator):
    """Discounted returns of turns."""

    gamma: float = 0.95
    """Discount of one turn."""

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, low=0, high=1)

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import rewards_of, varied_groups
        from rollart_flow.algorithms.advantages.tokens import actions_of, discounted

        values = tuple(
            discounted(actions.rewards, self.gamma)[actions.turns].astype(np.float32)
            for actions in actions_of(batch)
        )
        _, constant = varied_groups(batch, rewards_of(batch))
        return Advantages(values, zero_variance_groups=constant)

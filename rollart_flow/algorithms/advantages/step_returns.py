"""Discounted returns of turns: every token of a turn is credited with what came of that turn on.

    A_t = r_t + gamma A_(t+1)                   over the turns t of one trajectory

r_t is what the environment gave for the turn; the last turn also has what the trajectory's reward
differs from the sum of all. Source: step-level MDP of agentic RL (SkyRL's transitions).
There is no baseline: a group of equal rewards is counted, and still teaches its returns.
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
        """Advantages of a batch, each [action tokens].

        Raises:
            TrainerError: a trajectory has no reward, or an action token outside its turns.
        """
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import rewards_of, varied_groups
        from rollart_flow.algorithms.advantages.tokens import actions_of, discounted

        values = tuple(
            discounted(actions.rewards, self.gamma)[actions.turns].astype(np.float32)
            for actions in actions_of(batch)
        )
        _, constant = varied_groups(batch, rewards_of(batch))
        return Advantages(values, zero_variance_groups=constant)

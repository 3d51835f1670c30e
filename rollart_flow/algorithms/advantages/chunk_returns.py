"""Discounted returns of interaction chunks (IPA).

    G_k = gamma^(chunks from k to the last) R   over the chunks k of one trajectory

A chunk is the text that the policy generates between two observations; R is the trajectory's
reward. Source: chunked MDP of ROLL's IPA (2512.24873), with the gamma of its public settings. As
there, rewards within the trajectory are ignored, and there is no baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Advantages, Estimator
from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ChunkReturns(Estimator):
    """Discounted returns of interaction chunks."""

    gamma: float = 0.95
    """Discount of one chunk."""

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, low=0, high=1)

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import rewards_of, varied_groups
        from rollart_flow.algorithms.advantages.tokens import actions_of

        rewards = rewards_of(batch)
        values = tuple(
            (reward * self.gamma ** (actions.chunks[-1] - actions.chunks)).astype(np.float32)
            for actions, reward in zip(actions_of(batch), rewards, strict=True)
        )
        _, constant = varied_groups(batch, rewards)
        return Advantages(values, zero_variance_groups=constant)

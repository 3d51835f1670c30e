"""Supervised fine-tuning under the condition of a high reward: better trajectories weigh more.

    w    = min(cap, exp(r / temperature) / mean over the batch of exp(r / temperature))
    loss = -w log pi_theta

The weights turn the stored distribution into the one that is conditioned on a soft event of
success, exp(r / temperature). A high temperature imitates everything (`sft`), a low one the best
alone. OpenRLHF writes the reward into the prompt instead, as a decision transformer does, and asks
for the highest when it samples. Here tokens are trained on as they were sampled, and prompts stay
the same.

Sources: reward-weighted regression (Peters & Schaal 2007); AWR (1910.00177), eq. 8, for the cap;
decision-transformer alignment (2308.12050) for what OpenRLHF does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Advantages, Estimator
from rollart_flow.algorithms.losses.surrogates import Vanilla
from rollart_flow.algorithms.recipe import Common, compose
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class RewardWeighted(CheckedSettings, Estimator):
    """Weights that grow exponentially with the reward, of mean 1 over the batch but for the cap."""

    temperature: Positive = 1.0
    """Difference of rewards for which a trajectory weighs e times as much."""
    cap: Positive = 20.0
    """Largest weight."""

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import equal_groups, one_each, rewards_of

        rewards = rewards_of(batch)
        weights = np.exp((rewards - rewards.max()) / self.temperature)
        weights = np.minimum(self.cap, weights / weights.mean())
        return Advantages(one_each(weights), equal_groups(batch))


def conditional_sft(
    *, temperature: float = 1.0, cap: float = 20.0, **common: Unpack[Common]
) -> Algorithm:
    """Conditional supervised fine-tuning for `train`.

    Args:
        temperature: difference of rewards for which a trajectory weighs e times as much.
        cap: largest weight, whose mean over the batch is 1.
        **common: see `Common`.
    """
    if "advantage" in common:
        raise SettingsError("conditional_sft is its advantage; leave advantage= out, or take sft")
    weighted = RewardWeighted(temperature, cap)
    return compose("conditional_sft", Vanilla(), common, advantage=weighted)

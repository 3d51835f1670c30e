"""Advantages from the returns of turns and interaction chunks, for each action token.

r_t is the environment's reward of turn t; the last turn also has the difference of the trajectory's
reward from the sum of all. Groups of equal rewards are counted, and still have advantages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rollart_flow.algorithms.base import Advantages, Discount, Estimator, Floats
from rollart_flow.fields import Positive, Within
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from rollart_flow.algorithms.advantages.columns import Actions


@dataclass(frozen=True, slots=True)
class StepReturns(CheckedSettings, Estimator):
    """Discounted returns of turns: every token of a turn has the return from the turn.

        A_t = r_t + gamma A_(t+1)                   over the turns t of one trajectory

    Source: step-level MDP of agentic RL (SkyRL's transitions). There is no baseline.
    """

    gamma: Discount = 0.95
    """Discount of one turn."""

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import (
            actions_of,
            discounted,
            equal_groups,
            float32,
        )

        returns = ((each, discounted(each.rewards, self.gamma)) for each in actions_of(batch))
        values = float32(value[each.turns] for each, value in returns)
        return Advantages(values, equal_groups(batch))


@dataclass(frozen=True, slots=True)
class ChunkReturns(CheckedSettings, Estimator):
    """Discounted returns of interaction chunks (IPA).

        G_k = gamma^(chunks from k to the last) R   over the chunks k of one trajectory

    A chunk is the text that the policy generates between two observations; R is the trajectory's
    reward. Source: chunked MDP of ROLL's IPA (2512.24873), with the gamma of its public settings.
    As there, rewards within the trajectory are ignored, and there is no baseline.
    """

    gamma: Discount = 0.95
    """Discount of one chunk."""

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import (
            actions_of,
            equal_groups,
            float32,
            rewards_of,
        )

        rows = zip((each.chunks for each in actions_of(batch)), rewards_of(batch), strict=True)
        values = float32(reward * self.gamma ** (chunks[-1] - chunks) for chunks, reward in rows)
        return Advantages(values, equal_groups(batch))


@dataclass(frozen=True, slots=True)
class GiGPO(CheckedSettings, Estimator):
    """Group-in-group advantages: of the episode among attempts, of each turn among equal states.

        A^E   = (R - mean(R)) / (std(R) + eps)      over the attempts of one group
        G_t   = r_t + gamma G_(t+1)                 over the turns t of one attempt
        A^S_t = (G_t - mean(G)) / (std(G) + eps)    over the turns of the group that began in the
                                                    same state as t
        A_t   = A^E + step_weight A^S_t             for every token of turn t

    Source: GiGPO (2505.10978) section 4. Two turns began in the same state if their observations
    are the same text. Rewards of a group, or returns from a state, that are all equal add exactly
    0.
    """

    gamma: Discount = 0.95
    """Discount of one turn."""
    step_weight: Annotated[float, Within(0)] = 1.0
    """Factor of the advantage of turns; 0 is GRPO."""
    eps: Positive = 1e-6
    """Term added to every standard deviation."""

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages.columns import (
            actions_of,
            float32,
            groups_of,
            in_groups,
        )

        actions = actions_of(batch)
        episodes, constant = in_groups(batch, self._normalized)
        rows = zip(episodes, actions, strict=True)
        values = [episode + 0.0 * each.rewards for episode, each in rows]
        for members in groups_of(batch):
            self._add_steps(values, actions, members.tolist())
        pairs = zip(values, actions, strict=True)
        return Advantages(float32(value[each.turns] for value, each in pairs), constant)

    def _add_steps(self, values: list[Floats], actions: list[Actions], members: list[int]) -> None:
        """Add the advantages of turns of one group to the values of its members [turns]."""
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import discounted

        states: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        returns = {place: discounted(actions[place].rewards, self.gamma) for place in members}
        for place in members:
            for turn, observation in enumerate(actions[place].observations):
                states[observation].append((place, turn))
        for turns in states.values():
            of_state = np.array([returns[place][turn] for place, turn in turns])
            if np.ptp(of_state) > 0:
                for (place, turn), value in zip(turns, self._normalized(of_state), strict=True):
                    values[place][turn] += self.step_weight * value

    def _normalized(self, values: Floats) -> Floats:
        normalized: Floats = (values - values.mean()) / (values.std() + self.eps)
        return normalized

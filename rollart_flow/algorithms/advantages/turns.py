"""Advantages from the returns of turns and interaction chunks, for each action token.

r_t is the environment's reward of turn t; the last turn also has the difference of the trajectory's
reward from the sum of all. Groups of equal rewards are counted, and still have advantages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

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
        from rollart_flow.algorithms.advantages import columns

        actions = columns.actions_of(batch)
        returns = (columns.discounted(each.rewards, self.gamma)[each.turns] for each in actions)
        values = columns.float32(returns)
        return Advantages(values, columns.equal_groups(batch))


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
        from rollart_flow.algorithms.advantages import columns

        chunks = (actions.chunks for actions in columns.actions_of(batch))
        rows = zip(chunks, columns.rewards_of(batch), strict=True)
        values = columns.float32(reward * self.gamma ** (own[-1] - own) for own, reward in rows)
        return Advantages(values, columns.equal_groups(batch))


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

    compares_groups: ClassVar[bool] = True

    def __call__(self, batch: pa.Table) -> Advantages:
        from rollart_flow.algorithms.advantages import columns

        actions = columns.actions_of(batch)
        episodes, constant = columns.in_groups(batch, self._normalized)
        rows = zip(episodes, actions, strict=True)
        values = [episode + 0.0 * each.rewards for episode, each in rows]
        for members in columns.groups_of(batch):
            self._add_steps(values, actions, members.tolist())
        pairs = zip(values, actions, strict=True)
        return Advantages(columns.float32(value[each.turns] for value, each in pairs), constant)

    def _add_steps(self, values: list[Floats], actions: list[Actions], members: list[int]) -> None:
        """Add the advantages of turns of one group to the values of its members [turns]."""
        import numpy as np

        from rollart_flow.algorithms.advantages import columns

        states: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        rewards = {place: actions[place].rewards for place in members}
        returns = {place: columns.discounted(own, self.gamma) for place, own in rewards.items()}
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

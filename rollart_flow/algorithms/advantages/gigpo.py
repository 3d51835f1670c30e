"""Group-in-group advantages: of the episode among attempts, of each turn among equal states.

    A^E   = (R - mean(R)) / (std(R) + eps)      over the attempts of one group
    G_t   = r_t + gamma G_(t+1)                 over the turns t of one attempt
    A^S_t = (G_t - mean(G)) / (std(G) + eps)    over the turns of the group that began in the same
                                                state as t
    A_t   = A^E + step_weight A^S_t             for every token of turn t

Source: GiGPO (2505.10978) section 4. Two turns began in the same state if their observations are
the same text. r_t is the environment's reward of the turn; the last turn also has the difference of
the trajectory's reward from the sum of all. The invariant: rewards of a group, or returns from a
state, that are all equal add exactly 0. Groups of equal rewards are counted; their turns still have
advantages among equal states.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.algorithms.base import Advantages, Estimator, Floats
from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import pyarrow as pa

    from rollart_flow.algorithms.advantages.tokens import Actions


@dataclass(frozen=True, slots=True)
class GiGPO(Estimator):
    """Advantages of episodes and of turns that began in equal states."""

    gamma: float = 0.95
    """Discount of one turn."""
    step_weight: float = 1.0
    """Factor of the advantage of turns; 0 is GRPO."""
    eps: float = 1e-6
    """Term added to every standard deviation."""

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, low=0, high=1)
        check_number("step_weight", self.step_weight, low=0)
        check_number("eps", self.eps, low=0, open_low=True)

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import groups_of, rewards_of, varied_groups
        from rollart_flow.algorithms.advantages.tokens import actions_of

        rewards, actions = rewards_of(batch), actions_of(batch)
        values = [np.zeros(len(each.rewards)) for each in actions]
        varied, constant = varied_groups(batch, rewards)
        for members in varied:
            for place, value in zip(members, self._normalized(rewards[members]), strict=True):
                values[place] += value
        for members in groups_of(batch):
            self._add_steps(values, actions, members.tolist())
        pairs = zip(values, actions, strict=True)
        return Advantages(
            tuple(value[each.turns].astype(np.float32) for value, each in pairs),
            zero_variance_groups=constant,
        )

    def _add_steps(self, values: list[Floats], actions: list[Actions], members: list[int]) -> None:
        """Add the advantages of turns of one group to the values of its members [turns]."""
        import numpy as np

        from rollart_flow.algorithms.advantages.tokens import discounted

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
        import numpy as np

        return np.asarray((values - values.mean()) / (values.std() + self.eps))

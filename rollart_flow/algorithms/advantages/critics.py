"""Advantages from a critic's values, with the critic's targets, for each action token.

A turn's reward belongs to its last action token. After the last token all terms are 0, also if the
episode was truncated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from rollart_flow.algorithms.base import TARGETS, Advantages, Discount, Estimator, Floats
from rollart_flow.errors import SettingsError
from rollart_flow.fields import Positive, Within
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class GAE(CheckedSettings, Estimator):
    """Generalized advantage estimation (PPO with a critic).

        delta_t  = r_t + gamma V_(t+1) - V_t        over the action tokens t of one trajectory
        A_t      = delta_t + gamma lam A_(t+1)
        target_t = A_t + V_t

    Source: Schulman et al. 2015 (1506.02438).
    """

    needs_values: ClassVar[bool] = True

    gamma: Discount = 1.0
    """Discount of one token."""
    lam: Discount = 0.95
    """Weight of later errors: 0 uses the critic's next value, 1 the whole return."""

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages import columns

        actions = columns.actions_of(batch)
        values = columns.action_values(batch, "values", [len(each.turns) for each in actions])
        advantages = []
        for each, value in zip(actions, values, strict=True):
            delta = each.paid + self.gamma * np.append(value[1:], 0.0) - value
            advantages.append(columns.discounted(delta, self.gamma * self.lam))
        targets = columns.float32(a + value for a, value in zip(advantages, values, strict=True))
        constant = columns.equal_groups(batch)
        return Advantages(columns.float32(advantages), constant, {TARGETS: targets})


@dataclass(frozen=True, slots=True)
class VTrace(CheckedSettings, Estimator):
    """V-trace: a critic's targets, corrected for tokens that an older policy sampled (IMPALA).

        rho_t    = min(rho_bar, pi/mu)    c_t = min(c_bar, pi/mu)      pi: the step's first weights
        delta_t  = rho_t (r_t + gamma V_(t+1) - V_t)
        target_t = v_t = V_t + delta_t + gamma c_t (v_(t+1) - V_(t+1))
        A_t      = r_t + gamma v_(t+1) - V_t

    Source: Espeholt et al. 2018 (1802.01561) section 4.1. IMPALA's gradient is
    rho_t A_t grad log pi; the loss has the factor rho_t, so that nothing is corrected twice.
    """

    needs_values: ClassVar[bool] = True
    needs_old_logprobs: ClassVar[bool] = True

    gamma: Discount = 1.0
    """Discount of one token."""
    rho_bar: Positive = 1.0
    """Cap of the ratio on a token's own error, which determines the policy of the learned value."""
    c_bar: Annotated[float, Within(0)] = 1.0
    """Cap of the ratio on later errors, which limits how far they reach back; at most `rho_bar`."""

    def __post_init__(self) -> None:
        CheckedSettings.__post_init__(self)
        if self.c_bar > self.rho_bar:
            raise SettingsError(f"c_bar={self.c_bar!r}: expected at most rho_bar={self.rho_bar!r}")

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages import columns

        actions = columns.actions_of(batch)
        counts = [len(each.turns) for each in actions]
        values = columns.action_values(batch, "values", counts)
        old = columns.action_values(batch, "old_logprobs", counts)
        advantages, targets = [], []
        rows = zip(actions, values, old, columns.behavior_logprobs(batch), strict=True)
        for each, value, pi, mu in rows:
            targets.append(self._targets(each.paid, value, pi - mu))
            advantages.append(each.paid + self.gamma * np.append(targets[-1][1:], 0.0) - value)
        constant, stored = columns.equal_groups(batch), {TARGETS: columns.float32(targets)}
        return Advantages(columns.float32(advantages), constant, stored)

    def _targets(self, paid: Floats, value: Floats, log_ratio: Floats) -> Floats:
        """Compute v of each action token [action tokens]."""
        import numpy as np

        rho = np.exp(np.minimum(log_ratio, np.log(self.rho_bar)))
        trace = self.gamma * np.minimum(rho, self.c_bar)
        correction = rho * (paid + self.gamma * np.append(value[1:], 0.0) - value)
        for t in range(len(value) - 2, -1, -1):
            correction[t] += trace[t] * correction[t + 1]
        return np.asarray(value + correction)

"""V-trace: a critic's targets, corrected for tokens that an older policy sampled (IMPALA).

    rho_t    = min(rho_bar, pi/mu)    c_t = min(c_bar, pi/mu)      pi: the step's first weights
    delta_t  = rho_t (r_t + gamma V_(t+1) - V_t)
    target_t = v_t = V_t + delta_t + gamma c_t (v_(t+1) - V_(t+1))
    A_t      = r_t + gamma v_(t+1) - V_t

Source: Espeholt et al. 2018 (1802.01561) section 4.1.

IMPALA's gradient is rho_t A_t grad log pi; the loss has the factor rho_t, so that nothing is
corrected twice. A turn's reward belongs to its last action token; after the last token all terms
are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.algorithms.base import TARGETS, Advantages, Estimator, Floats
from rollart_flow.errors import SettingsError
from rollart_flow.validation import check_number

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class VTrace(Estimator):
    """V-trace targets and advantages from a critic's values."""

    needs_values: ClassVar[bool] = True
    needs_old_logprobs: ClassVar[bool] = True

    gamma: float = 1.0
    """Discount of one token."""
    rho_bar: float = 1.0
    """Cap of the ratio on a token's own error, which determines the policy of the learned value."""
    c_bar: float = 1.0
    """Cap of the ratio on later errors, which limits how far they reach back; at most `rho_bar`."""

    def __post_init__(self) -> None:
        check_number("gamma", self.gamma, low=0, high=1)
        check_number("rho_bar", self.rho_bar, low=0, open_low=True)
        check_number("c_bar", self.c_bar, low=0)
        if self.c_bar > self.rho_bar:
            raise SettingsError(f"c_bar={self.c_bar!r}: expected at most rho_bar={self.rho_bar!r}")

    def __call__(self, batch: pa.Table) -> Advantages:
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import rewards_of, varied_groups
        from rollart_flow.algorithms.advantages.tokens import (
            action_values,
            actions_of,
            behavior_logprobs,
        )

        actions = actions_of(batch)
        counts = [len(each.turns) for each in actions]
        values = action_values(batch, "values", counts)
        old = action_values(batch, "old_logprobs", counts)
        advantages, targets = [], []
        rows = zip(actions, values, old, behavior_logprobs(batch), strict=True)
        for each, value, pi, mu in rows:
            target = self._targets(each.paid, value, pi - mu)
            following = self.gamma * np.append(target[1:], 0.0)
            advantages.append((each.paid + following - value).astype(np.float32))
            targets.append(target.astype(np.float32))
        _, constant = varied_groups(batch, rewards_of(batch))
        return Advantages(tuple(advantages), constant, {TARGETS: tuple(targets)})

    def _targets(self, paid: Floats, value: Floats, log_ratio: Floats) -> Floats:
        """Compute v of each action token [action tokens]."""
        import numpy as np

        rho = np.exp(np.minimum(log_ratio, np.log(self.rho_bar)))
        trace = self.gamma * np.minimum(rho, self.c_bar)
        correction = rho * (paid + self.gamma * np.append(value[1:], 0.0) - value)
        for t in range(len(value) - 2, -1, -1):
            correction[t] += trace[t] * correction[t + 1]
        return np.asarray(value + correction)

"""Direct Preference Optimization: pairs of trajectories, without a reward model.

    h    = log(pi_theta / pi_ref)(preferred) - log(pi_theta / pi_ref)(rejected)
    loss = -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)          e = label_smoothing
           - nll (mean over its tokens of log pi_theta)(preferred)

Sources: 2305.18290, eq. 7; cDPO (ericmitchell.ai/cdpo.pdf) for the smoothing of labels that are
wrong with probability e; Iterative RPO (2404.19733), eq. 1, for the likelihood of the preferred,
without which both trajectories of a pair may become unlikely.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Unpack

from rollart_flow.algorithms.advantages.preferences import PairLoss
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Advantages, Floats
from rollart_flow.algorithms.losses.linearized import START_LOSS
from rollart_flow.algorithms.recipe import OfPreferences, compose_preferences
from rollart_flow.fields import Within

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class DPO(PairLoss):
    """DPO's loss of the margin of a pair."""

    label_smoothing: Annotated[float, Within(0, 0.5)] = 0.0
    """Probability that a label is wrong."""
    nll: Annotated[float, Within(0)] = 0.0
    """Factor of the negative log-likelihood of the preferred trajectory, by its tokens."""

    def of_margin(self, margin: Floats) -> tuple[Floats, Floats]:
        import numpy as np

        logits, wrong = self.beta * margin, self.label_smoothing
        right, other = np.logaddexp(0.0, -logits), np.logaddexp(0.0, logits)
        loss = (1.0 - wrong) * right + wrong * other
        # The derivative of -log sigmoid(x) is -sigmoid(-x), and sigmoid(-x) = exp(-softplus(x)).
        slope = wrong * np.exp(-right) - (1.0 - wrong) * np.exp(-other)
        return loss, self.beta * slope

    def __call__(self, batch: pa.Table) -> Advantages:
        found = super(DPO, self).__call__(batch)
        return found if self.nll == 0 else self._with_likelihood(batch, found)

    def _with_likelihood(self, batch: pa.Table, found: Advantages) -> Advantages:
        """Add the likelihood of the preferred trajectories, a mean over pairs."""
        import numpy as np

        from rollart_flow.algorithms.advantages.columns import action_values, one_each
        from rollart_flow.algorithms.advantages.preferences import labels_of, token_counts

        counts, each = token_counts(batch), 2.0 * self.nll * labels_of(batch)
        logprobs = action_values(batch, "old_logprobs", counts.astype(int).tolist())
        means = np.array([values.mean() for values in logprobs])
        values = np.concatenate(found.values) + each / counts
        start = np.concatenate(found.columns[START_LOSS]) - each * means / counts
        columns = {**found.columns, START_LOSS: one_each(start)}
        return replace(found, values=one_each(values), columns=columns)


def dpo(
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    nll: float = 0.0,
    **common: Unpack[OfPreferences],
) -> Algorithm:
    """DPO for `train`, on batches of pairs from `stored(..., prefer=...)`.

    Args:
        beta: strength of the tie to the reference policy, the one that the run starts from.
        label_smoothing: probability that a preference is wrong (cDPO); below 0.5.
        nll: factor of the negative log-likelihood of the preferred trajectory (RPO).
        **common: see `OfPreferences`.
    """
    return compose_preferences("dpo", DPO(beta, label_smoothing, nll), common)

"""Losses of preferences, as the value and the slope at the weights that a step starts from.

A loss of pairs or labels depends on log(pi_theta / pi_ref) of whole trajectories, which lie in
other micro-batches and ranks. Its gradient by a token's log-likelihood is one number for each
trajectory, which is computed from all trajectories of the batch before the step
(`losses.Linearized`). The invariant: the mean over trajectories of the sums over their action
tokens is the loss of the batch.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rollart_flow.algorithms.base import Advantages, Estimator, Floats
from rollart_flow.algorithms.losses.linearized import START_LOSS
from rollart_flow.errors import TrainerError
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rollart_flow.algorithms.advantages.columns import Places

PREFERRED, PAIR = "preferred", "pair"
IMPLICIT_REWARD = "implicit_reward"
"""Column of `batches` with beta log(pi_old / pi_ref) of each trajectory."""


class PreferenceLoss(Estimator):
    """A loss of preferred and rejected trajectories."""

    needs_old_logprobs: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = True
    single_update: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class PairLoss(CheckedSettings, PreferenceLoss):
    """A loss of the margin by which the policy prefers one trajectory of a pair to the other.

        h = log(pi_theta / pi_ref)(preferred) - log(pi_theta / pi_ref)(rejected)

    The loss of the batch is the mean over its pairs.
    """

    reads: ClassVar[frozenset[str]] = frozenset({PREFERRED, PAIR})

    beta: Positive = 0.1
    """Strength of the tie to the reference policy."""

    @abstractmethod
    def of_margin(self, margin: Floats) -> tuple[Floats, Floats]:
        """Return (loss, its derivative by the margin), each [pairs]."""

    def __call__(self, batch: pa.Table) -> Advantages:
        """Return the slopes of the loss, with the columns `start_loss` and `implicit_reward`.

        Raises TrainerError if a trajectory is in no pair, or a pair is not one preferred and one
        rejected trajectory.
        """
        import numpy as np

        counts = token_counts(batch)
        ratios = log_ratios(batch, counts)
        preferred, rejected = pairs_of(batch)
        loss, slope = self.of_margin(ratios[preferred] - ratios[rejected])
        values, slopes = np.empty_like(ratios), np.empty_like(ratios)
        values[preferred] = values[rejected] = loss
        # Trajectories are twice as many as pairs, over which the mean is.
        slopes[preferred], slopes[rejected] = 2 * slope, -2 * slope
        return tangent(values, slopes, counts, self.beta * ratios)


def tangent(values: Floats, slopes: Floats, counts: Floats, implicit: Floats) -> Advantages:
    """Return a loss by its value and slope.

    Args:
        values: part of each trajectory in the loss; their mean is the loss [trajectories].
        slopes: derivative of the loss, times the number of trajectories, by the log-likelihood of
            a trajectory [trajectories].
        counts: number of action tokens [trajectories].
        implicit: implicit reward, beta log(pi_old / pi_ref) [trajectories].
    """
    from rollart_flow.algorithms.advantages.columns import one_each

    columns = {START_LOSS: one_each(values / counts), IMPLICIT_REWARD: one_each(implicit)}
    return Advantages(one_each(-slopes), zero_variance_groups=0, columns=columns)


def token_counts(batch: pa.Table) -> Floats:
    """Return the number of action tokens [trajectories]; TrainerError if one has none."""
    from rollart_flow.algorithms.advantages.columns import action_counts

    return action_counts(batch)


def log_ratios(batch: pa.Table, counts: Floats, prefix: str = "") -> Floats:
    """Return log(pi_old / pi_ref) of whole trajectories [trajectories].

    Args:
        batch: with `old_logprobs` and `reference_logprobs`.
        counts: number of action tokens [trajectories].
        prefix: beginning of the names of the two columns.
    """
    import numpy as np

    from rollart_flow.algorithms.advantages.columns import action_values

    whole = counts.astype(int).tolist()
    old, reference = (
        action_values(batch, f"{prefix}{name}", whole)
        for name in ("old_logprobs", "reference_logprobs")
    )
    return np.array([float((a - b).sum()) for a, b in zip(old, reference, strict=True)])


def labels_of(batch: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which trajectories are preferred [trajectories]; TrainerError if one has no label."""
    import numpy as np

    labels = batch[PREFERRED].to_pylist() if PREFERRED in batch.column_names else [None]
    if None in labels:
        raise TrainerError(
            f"trajectory {labels.index(None)} of the batch is neither preferred nor rejected; "
            "draw batches from stored(..., prefer=EXPRESSION)"
        )
    return np.array(labels, dtype=np.bool_)


def pairs_of(batch: pa.Table) -> tuple[Places, Places]:
    """Return the places of (preferred, rejected) trajectories of all pairs, [pairs] each.

    Raises TrainerError if a trajectory is in no pair, or a pair is not one of each.
    """
    import numpy as np

    labels = labels_of(batch)
    pairs = batch[PAIR].to_pylist() if PAIR in batch.column_names else [None]
    if None in pairs:
        raise TrainerError(
            f"trajectory {pairs.index(None)} of the batch is in no pair; draw batches from "
            "stored(..., prefer=EXPRESSION)"
        )
    numbers = np.array(pairs)
    good, bad = np.flatnonzero(labels), np.flatnonzero(~labels)
    good, bad = good[np.argsort(numbers[good])], bad[np.argsort(numbers[bad])]
    for number in np.unique(numbers).tolist():
        found = (int((numbers[good] == number).sum()), int((numbers[bad] == number).sum()))
        if found != (1, 1):
            raise TrainerError(
                f"pair {number} of the batch has {found[0]} preferred and {found[1]} rejected "
                "trajectories; a pair has one of each"
            )
    return good, bad

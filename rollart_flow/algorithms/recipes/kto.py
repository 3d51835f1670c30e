"""Kahneman-Tversky Optimization: trajectories that are good or bad by themselves, without pairs.

    r    = log(pi_theta / pi_ref)
    z0   = max(0, mean over the batch of log(pi_theta / pi_ref) of mismatched trajectories)
    loss = desirable (1 - sigmoid(beta (r - z0)))          preferred trajectories
           undesirable (1 - sigmoid(beta (z0 - r)))        rejected ones

The reference point z0 stands for KL(pi_theta || pi_ref) and has no gradient. It is biased and never
below 0; the paper estimates it from prompts with completions of other prompts, since those cost
nothing to sample. If all trajectories of a batch were of one kind, only z0 would hold the loss
where it is, so that such a batch is refused. With `reference_point="zero"` z0 is 0, which is APO's
loss of unpaired trajectories (2408.06266).

Source: 2402.01306, section 4; desirable x the number of preferred trajectories should be about 1 to
4/3 of undesirable x that of rejected ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack, get_args

from rollart_flow.algorithms.advantages.preferences import PREFERRED, PreferenceLoss
from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Advantages
from rollart_flow.algorithms.recipe import OfPreferences, compose_preferences
from rollart_flow.errors import TrainerError
from rollart_flow.fields import Positive
from rollart_flow.validation import CheckedSettings, check_choice

if TYPE_CHECKING:
    import pyarrow as pa

ReferencePoint = Literal["mismatched", "zero"]
"""Estimate of the divergence that gains and losses are seen from, see the module."""


@dataclass(frozen=True, slots=True)
class KTO(CheckedSettings, PreferenceLoss):
    """KTO's loss with a reference point of 0."""

    reads: ClassVar[frozenset[str]] = frozenset({PREFERRED})

    beta: Positive = 0.1
    """Strength of the tie to the reference policy."""
    desirable: Positive = 1.0
    """Weight of preferred trajectories."""
    undesirable: Positive = 1.0
    """Weight of rejected trajectories."""

    def __call__(self, batch: pa.Table) -> Advantages:
        """Return the slopes of the loss, with the columns `start_loss` and `implicit_reward`.

        Raises TrainerError if a trajectory is neither preferred nor rejected, or all are the same.
        """
        import numpy as np

        from rollart_flow.algorithms.advantages.preferences import (
            labels_of,
            log_ratios,
            tangent,
            token_counts,
        )

        labels, counts = labels_of(batch), token_counts(batch)
        if labels.all() or not labels.any():
            kind, other = ("preferred", "rejected") if labels.all() else ("rejected", "preferred")
            raise TrainerError(
                f"kto: all trajectories of the batch are {kind}; draw {other} ones with them, or "
                "take sft"
            )
        ratios = log_ratios(batch, counts)
        signs = np.where(labels, 1.0, -1.0)
        gains = self.beta * signs * (ratios - self._reference_point(batch))
        lost = np.exp(-np.logaddexp(0.0, gains))  # 1 - sigmoid
        weights = np.where(labels, self.desirable, self.undesirable)
        slopes = -weights * signs * self.beta * lost * (1.0 - lost)
        return tangent(weights * lost, slopes, counts, self.beta * ratios)

    def _reference_point(self, batch: pa.Table) -> float:
        """Return z0."""
        return 0.0


@dataclass(frozen=True, slots=True)
class MismatchedKTO(KTO):
    """KTO's loss with the paper's reference point."""

    needs_mismatched: ClassVar[bool] = True

    def _reference_point(self, batch: pa.Table) -> float:
        import numpy as np

        from rollart_flow.algorithms.parts.mismatched import MISMATCHED

        sums = [
            np.array([sum(each) for each in batch[f"{MISMATCHED}{name}"].to_pylist()])
            for name in ("old_logprobs", "reference_logprobs")
        ]
        return max(0.0, float((sums[0] - sums[1]).mean()))


def kto(
    *,
    beta: float = 0.1,
    desirable: float = 1.0,
    undesirable: float = 1.0,
    reference_point: ReferencePoint = "mismatched",
    **common: Unpack[OfPreferences],
) -> Algorithm:
    """KTO for `train`, on batches from `stored(..., prefer=...)`.

    Args:
        beta: strength of the tie to the reference policy, the one that the run starts from.
        desirable: weight of preferred trajectories.
        undesirable: weight of rejected trajectories.
        reference_point: estimate of the divergence from the reference policy: of "mismatched"
            trajectories, as in the paper, or "zero", which takes one pass less.
        **common: see `OfPreferences`.
    """
    check_choice("reference_point", reference_point, get_args(ReferencePoint))
    make = MismatchedKTO if reference_point == "mismatched" else KTO
    return compose_preferences("kto", make(beta, desirable, undesirable), common)

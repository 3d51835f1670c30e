"""Distance of the policy that sampled a batch from the one that its step starts from.

With w = pi_old / mu of each action token, where pi_old is recomputed by the trainer and mu is the
engine's. Tokens with a lag of 0 were sampled by the weights that the step starts from, so that
their differences come from kernels, precision or sampling, not from staleness. The invariant: the
numbers depend on the tokens alone, not on their grouping or order, except for rounding.

Source: ROLL Flash (2510.11345) A.1 for the engine's mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rollart_flow.trainers.base import LagStatistics
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.trainers.batch.training_batch import TrainingBatch


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Mismatch statistics of one step. Field names are columns of `steps`."""

    mismatch_kl: float
    """KL of the tokens with a lag of 0, or of all tokens if none has one."""
    mismatch_ratio_max: float
    """Largest w of the same tokens."""
    ess: float
    """Effective sample size of the same tokens."""
    lags: list[LagStatistics] | None
    """Statistics by lag, ascending; None if the batch has no versions of tokens."""


def mismatch_columns(old_logprobs: Array, batch: TrainingBatch) -> dict[str, Any]:
    """Return the columns of `steps` about the mismatch of a batch.

    Args:
        old_logprobs: logprobs under the weights that the step starts from [action tokens].
        batch: the batch.
    """
    found = measure(old_logprobs, batch.behavior_logprobs, batch.columns.lags)
    return {field.name: getattr(found, field.name) for field in fields(found)}


def measure(old_logprobs: Array, behavior_logprobs: Array, lags: Array | None) -> Mismatch:
    """Compare pi_old with mu; arguments are [action tokens] each."""
    # A token whose mu is unknown counts as the policy's own.
    gap = np.nan_to_num(
        old_logprobs.astype(np.float64) - behavior_logprobs, posinf=np.inf, neginf=-np.inf
    )
    by_lag = None
    if lags is not None:
        by_lag = [_statistics(int(lag), gap[lags == lag]) for lag in np.unique(lags)]
        gap = gap[lags == 0] if (lags == 0).any() else gap
    same = _statistics(0, gap)
    return Mismatch(same.kl, float(_ratio(gap.max(keepdims=True))[0]), same.ess, by_lag)


def _statistics(lag: int, gap: Array) -> LagStatistics:
    weight = _ratio(gap - gap.max())  # ess knows no scale, so that nothing overflows
    return LagStatistics(
        lag=lag,
        tokens=len(gap),
        ratio_mean=float(_ratio(gap).mean()),
        kl=float((_ratio(gap) - 1.0 - gap).mean()),
        ess=float(weight.sum() ** 2 / (len(gap) * (weight**2).sum())),
    )


def _ratio(gap: Array) -> Array:
    """Return e^gap, at most e^60, so that the result is finite for a logprob of minus infinity."""
    ratio: Array = np.exp(np.minimum(gap, 60.0))
    return ratio

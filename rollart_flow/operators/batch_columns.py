"""What the train operator adds to the rows of a batch before they are trained on; without Ray.

The invariant: whoever trains on a batch, in a run or beside one, has its columns from here, so that
advantages and weights are computed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Advantages

Assess = Callable[[pa.Table], pa.Table]
"""`Trainer.recompute_old_logprobs`: what the trainer's weights say of a batch."""

_COLUMNS: tuple[str, ...] = (
    "trajectory_id", "group_id", "advantage", "weight", "staleness", "trained_version",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that can be trained on."""

    rows: pa.Table
    """As `Trainer.train_step` takes them."""
    stored: tuple[str, ...]
    """Columns of `rows` that its manifest in `batches` has."""
    zero_variance_groups: int
    """Groups whose rewards were all equal."""


def prepare(
    algorithm: Algorithm, rows: pa.Table, trained_version: int, recompute_old_logprobs: Assess
) -> Prepared:
    """Rows of `trajectories` with `staleness` to rows that can be trained on.

    Args:
        algorithm: whose advantages and weights they get.
        rows: the batch, in order of position.
        trained_version: version that the step starts from.
        recompute_old_logprobs: asked only where the estimator needs it.

    Raises:
        TrainerError: a trajectory lacks what the algorithm reads.
    """
    advantages = estimate(algorithm, rows, recompute_old_logprobs)
    trained = pa.array([trained_version] * rows.num_rows, pa.int32())
    weights = pa.array(algorithm.weights(rows), pa.float64())
    rows = rows.append_column("advantage", _lists(advantages.values))
    rows = rows.append_column("weight", weights).append_column("trained_version", trained)
    for name, values in advantages.columns.items():
        rows = rows.append_column(name, _lists(values))
    stored = (*_COLUMNS, *advantages.columns)
    return Prepared(rows, stored, advantages.zero_variance_groups)


def estimate(algorithm: Algorithm, rows: pa.Table, recompute_old_logprobs: Assess) -> Advantages:
    """Advantages of a batch, whose estimator may ask what the trainer's weights say of it."""
    if algorithm.advantage.needs_values or algorithm.advantage.needs_old_logprobs:
        found = recompute_old_logprobs(rows)
        for name in found.column_names:
            rows = rows.append_column(name, found[name])
    return algorithm.advantages(rows)


def _lists(values: Sequence[np.ndarray[tuple[int], np.dtype[np.float32]]]) -> pa.Array:
    """Numbers of each trajectory as a column of lists."""
    return pa.array([each.tolist() for each in values], pa.list_(pa.float32()))

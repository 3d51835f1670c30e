"""Columns that the train operator adds to the rows of a batch before training; without Ray.

Invariant: all code that trains on a batch, within a run or outside one, gets these columns from
this module, so that advantages and weights are computed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.algorithms.base import Advantages
from rollart_flow.algorithms.parts.branches import BranchWeight
from rollart_flow.algorithms.parts.mismatched import MISMATCHED, mismatched
from rollart_flow.episode_rows import as_episodes, starts_of
from rollart_flow.schema import row_schema

Assess = Callable[[pa.Table], pa.Table]
"""Type of `Trainer.recompute_old_logprobs`: columns computed under the trainer's weights."""

_COLUMNS: tuple[str, ...] = (
    "trajectory_id", "episode_id", "group_id", "advantage", "weight", "staleness", "lag",
    "trained_version",
)  # fmt: skip

SOURCE_COLUMNS = (
    "source_run", "source_seq", "source_version", "source_rescored", "preferred", "pair",
)  # fmt: skip
"""Columns of `batches` of rows that are drawn from what is stored."""
EXEMPT = "exempt"
"""Column of drawn rows, which is not stored: whether the bound does not count the row."""
_EPISODES = ["episode_id", "branch", "policy_version_start"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch with all columns that training needs."""

    rows: pa.Table
    """Rows in the form that `Trainer.train_step` takes."""
    stored: tuple[str, ...]
    """Names of the columns of `rows` that the batch's manifest in `batches` contains."""
    zero_variance_groups: int
    """Number of groups whose rewards were all equal."""


def prepare(
    algorithm: Algorithm,
    rows: pa.Table,
    trained_version: int,
    recompute_old_logprobs: Assess,
    branch_weight: BranchWeight = "split",
) -> Prepared:
    """Add the columns that training needs to rows of `trajectories` with `staleness`.

    Args:
        algorithm: algorithm that computes the advantages and weights.
        rows: the batch, in order of position.
        trained_version: version that the step starts from.
        recompute_old_logprobs: called only if the estimator needs it.
        branch_weight: weight of an episode of several rows.

    Raises:
        TrainerError: a trajectory lacks what the algorithm reads.
    """
    rows = _with_actions(rows)
    advantages = estimate(algorithm, rows, recompute_old_logprobs)
    trained = pa.array([trained_version] * rows.num_rows, pa.int32())
    weights = pa.array(algorithm.weights(rows, branch_weight), pa.float64())
    rows = rows.append_column("advantage", _lists(advantages.values))
    rows = rows.append_column("weight", weights).append_column("trained_version", trained)
    rows = _with_lag(rows, trained_version)
    for name, values in advantages.columns.items():
        rows = rows.append_column(name, _column(name, values))
    drawn = (name for name in SOURCE_COLUMNS if name in rows.column_names)
    stored = (*_COLUMNS, *drawn, *advantages.columns)
    return Prepared(rows, stored, advantages.zero_variance_groups)


def estimate(algorithm: Algorithm, rows: pa.Table, recompute_old_logprobs: Assess) -> Advantages:
    """Compute the advantages of a batch, with the trainer's own columns if they are needed."""
    reads = algorithm.advantage
    if reads.needs_values or reads.needs_old_logprobs or reads.needs_reference:
        rows = _with_columns(rows, recompute_old_logprobs(rows))
    if reads.needs_mismatched:
        found = recompute_old_logprobs(mismatched(rows))
        rows = _with_columns(rows, found, MISMATCHED)
    return algorithm.advantages(rows)


def _with_lag(rows: pa.Table, trained_version: int) -> pa.Table:
    """Add the column `lag`, which is null for rows that are exempt from the bound."""
    lag = lag_of(rows, trained_version)
    if EXEMPT in rows.column_names:
        exempt = pc.fill_null(rows[EXEMPT], False)
        lag = pc.if_else(exempt, pa.scalar(None, lag.type), lag)
        rows = rows.drop_columns([EXEMPT])
    return rows.append_column("lag", lag)


def counted_by_bound(rows: pa.Table) -> pa.Table:
    """Return the rows of a batch that the bound counts: all but the exempt ones."""
    if "source_seq" not in rows.column_names:
        return rows
    return rows.filter(pc.or_(pc.is_null(rows["source_seq"]), pc.is_valid(rows["lag"])))


def lag_of(rows: pa.Table, trained_version: int) -> pa.ChunkedArray:
    """Return trained_version minus the start version of each row's episode [versions]."""
    starts = starts_of(rows)
    names = [name for name in _EPISODES if name in rows.column_names]
    begun = as_episodes(rows.select(names), starts)["policy_version_start"]
    lag = pc.subtract(pa.scalar(trained_version, pa.int32()), begun)
    return lag.take(np.repeat(np.arange(len(starts) - 1), np.diff(starts)))


def _with_actions(rows: pa.Table) -> pa.Table:
    """Return rows without the branches that sampled nothing, on which nothing can be trained."""
    starts = starts_of(rows)
    if len(starts) == rows.num_rows + 1:
        return rows
    return rows.filter(pc.is_valid(rows["policy_version_start"]))


def _with_columns(rows: pa.Table, found: pa.Table, prefix: str = "") -> pa.Table:
    for name in found.column_names:
        rows = rows.append_column(f"{prefix}{name}", found[name])
    return rows


def _column(name: str, values: Sequence[np.ndarray[tuple[int], np.dtype[np.float32]]]) -> pa.Array:
    """Convert one array per trajectory to a column of `batches`, in its declared type."""
    declared = row_schema("batches").field(name).type
    return _lists(values) if pa.types.is_list(declared) else pa.array(np.concatenate(values))


def _lists(values: Sequence[np.ndarray[tuple[int], np.dtype[np.float32]]]) -> pa.Array:
    """Convert one array per trajectory to a column of lists."""
    return pa.array([each.tolist() for each in values], pa.list_(pa.float32()))

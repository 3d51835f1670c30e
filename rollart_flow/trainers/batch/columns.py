"""Columns of a stored batch that only some algorithms read; a batch may lack them.

The invariant: what an algorithm reads is there, or the batch is refused with one line; what it does
not read may be absent (a format warm start has no rewards and no versions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import TrainerError
from rollart_flow.trainers.batch.ragged import Array, read_column, read_lists


@dataclass(frozen=True, slots=True)
class Columns:
    """Each None where the batch does not have it."""

    rewards: Array | None
    """float32 [rows]: final reward of each trajectory."""
    lags: Array | None
    """int64 [action tokens of all rows]: trained_version less the version that drew each."""
    targets: Array | None
    """float32 [action tokens of all rows]: what a critic is trained towards."""

    def check(self, algorithm: Algorithm) -> None:
        """Refuse a batch that lacks what an algorithm reads.

        Raises:
            TrainerError: says which column is missing.
        """
        read: dict[str, tuple[bool, Any]] = {
            "reward": ("rewards" in algorithm.needs, self.rewards),
            "token_versions with trained_version": ("lags" in algorithm.needs, self.lags),
            "targets": (algorithm.critic is not None, self.targets),
        }
        for column, (needed, there) in read.items():
            if needed and there is None:
                raise TrainerError(
                    f"{algorithm.name} needs {column}, which the batch does not have for every row"
                )


def read_columns(table: pa.Table, at: Array, counts: Array) -> Columns:
    """The optional columns of a batch.

    Args:
        table: rows of `trajectories` joined with `batches`, or a part of their columns.
        at: places of the action tokens among all tokens of the batch.
        counts: action tokens of each row.

    Raises:
        TrainerError: a column is of another type, or not aligned with the others.
    """
    return Columns(_rewards(table), _lags(table, at, counts), _targets(table, counts))


def _complete(table: pa.Table, *names: str) -> bool:
    """Whether these columns are there, without a null."""
    return all(name in table.column_names and not table[name].null_count for name in names)


def _rewards(table: pa.Table) -> Array | None:
    if not _complete(table, "reward"):
        return None
    rewards: Array = read_column(table, "reward", pa.float64()).to_numpy().astype(np.float32)
    return rewards


def _lags(table: pa.Table, at: Array, counts: Array) -> Array | None:
    if not _complete(table, "token_versions", "trained_version"):
        return None
    versions = read_lists(table, "token_versions", pa.int32()).values
    trained = read_column(table, "trained_version", pa.int64()).to_numpy()
    if len(at) and at[-1] >= len(versions):
        raise TrainerError("token_versions of the batch are not aligned with its token_ids")
    lags: Array = np.repeat(trained, counts) - versions[at]
    return lags


def _targets(table: pa.Table, counts: Array) -> Array | None:
    if not _complete(table, "targets"):
        return None
    targets = read_lists(table, "targets", pa.float32())
    if (targets.lengths != counts).any():
        raise TrainerError("targets of the batch are not one for each action token")
    return targets.values

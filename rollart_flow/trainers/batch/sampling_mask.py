"""The tokens that could have been sampled for each stored action: allowed, and left by top-p or
top-k.

Shapes: A action tokens in row order, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.trainers.batch.ragged import (
    Array,
    Ragged,
    read_column,
    read_lists,
    read_nested_lists,
    refuse,
)


@dataclass(frozen=True, slots=True)
class SamplingMask:
    """Tokens with a probability above 0: allowed by the sampling, and left by top-p or top-k."""

    allowed: Ragged
    """Allowed token ids of each trajectory; an empty list allows all."""
    left_starts: Array
    """Index into `left` of the first action token of each trajectory [rows + 1]."""
    left: Ragged
    """Token ids that top-p or top-k left of each action token, where the trajectory has any."""

    def mask(self, rows: Array, owners: Array, vocabulary: int) -> torch.Tensor | None:
        """bool [A, V] for the action tokens of `rows`; `owners` [A] is the row of each. None: all
        true."""
        by_row = self.allowed.lengths[rows] > 0
        by_token = np.diff(self.left_starts)[rows] > 0
        if not by_row.any() and not by_token.any():
            return None
        allowed = np.repeat(~by_row[:, None], vocabulary, axis=1)
        at, row = self.allowed.positions(rows)
        allowed[row, self.allowed.values[at]] = True
        mask = allowed[owners]
        of_token, _ = Ragged(self.left.starts, self.left_starts).positions(rows)
        tokens = np.flatnonzero(by_token[owners])
        possible = np.zeros((len(tokens), vocabulary), dtype=bool)
        at, token = self.left.positions(of_token)
        possible[token, self.left.values[at]] = True
        mask[tokens] &= possible
        return torch.from_numpy(mask)


def read_sampling_mask(table: pa.Table, names: tuple[str, ...], counts: Array) -> SamplingMask:
    """Read the sampling mask of the rows of a batch.

    Args:
        table: table with `sampling` and `kept_token_ids`.
        names: names of the rows, for error messages.
        counts: number of action tokens of each row.

    Raises:
        TrainerError: a column is missing, of another type or not aligned with the action tokens.
    """
    every = np.arange(table.num_rows)
    left_starts, left = read_nested_lists(table, "kept_token_ids", pa.int32())
    left_counts = np.diff(left_starts)
    top_p = read_column(table, "sampling.top_p", pa.float64()).to_numpy()
    top_k = read_column(table, "sampling.top_k", pa.int64()).to_numpy()
    truncates = (top_p < 1.0) | (top_k > 0)
    misfit = np.where(
        truncates, left_counts != counts, (left_counts != 0) & (left_counts != counts)
    )
    refuse(names, misfit, every, "needs kept_token_ids for each action token (top-p or top-k)")
    return SamplingMask(
        read_lists(table, "sampling.allowed_token_ids", pa.int32()), left_starts, left
    )

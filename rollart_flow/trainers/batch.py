"""A stored batch as the trainer sees it: flat arrays, cut into padded micro-batches.

The invariant (design, token fidelity): every action token appears once, with the behavior logprob,
advantage, weight and sampling it was stored with; nothing is re-tokenized, and a row that the
trainer could not score as it was sampled is refused.

Shapes: B rows of a micro-batch, T their longest, A action tokens in row order, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.errors import TrainerError
from rollart_flow.trainers.ragged import Array, Ragged, read_column, read_lists, read_nested_lists


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward and backward pass."""

    token_ids: torch.Tensor
    """int64 [B, T], padded on the right with 0."""
    predictors: torch.Tensor
    """int64 [A]: place in the flattened [B * T] whose logits predict each action token."""
    targets: torch.Tensor
    """int64 [A]: the action tokens."""
    behavior_logprobs: torch.Tensor
    """float32 [A]"""
    advantages: torch.Tensor
    """float32 [A]"""
    weights: torch.Tensor
    """float32 [A]"""
    temperature: torch.Tensor
    """float32 [A]"""
    support: torch.Tensor | None
    """bool [A, V]: the tokens that could be drawn; None where all could."""


@dataclass(frozen=True, slots=True)
class Support:
    """Which tokens could be drawn at all: allowed by the sampling, kept by top-p or top-k."""

    allowed: Ragged
    """Allowed token ids of each trajectory; empty allows all."""
    kept_starts: Array
    """Index into `kept` of the first action token of each trajectory [rows + 1]."""
    kept: Ragged
    """Kept token ids of each action token of the trajectories that have any."""

    def mask(self, rows: Array, owners: Array, vocabulary: int) -> torch.Tensor | None:
        """bool [A, V] for action tokens of `rows`; `owners` [A] says which row each is of."""
        by_row = self.allowed.lengths[rows] > 0
        by_token = np.diff(self.kept_starts)[rows] > 0
        if not by_row.any() and not by_token.any():
            return None
        allowed = np.repeat(~by_row[:, None], vocabulary, axis=1)
        at, row = self.allowed.positions(rows)
        allowed[row, self.allowed.values[at]] = True
        mask = allowed[owners]
        of_token, _ = Ragged(self.kept.starts, self.kept_starts).positions(rows)
        tokens = np.flatnonzero(by_token[owners])
        kept = np.zeros((len(tokens), vocabulary), dtype=bool)
        at, token = self.kept.positions(of_token)
        kept[token, self.kept.values[at]] = True
        mask[tokens] &= kept
        return torch.from_numpy(mask)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """All rows of a batch, in order of position."""

    names: tuple[str, ...]
    """For messages: trajectory ids, or positions."""
    tokens: Ragged
    """int64 token ids of each row."""
    actions: Ragged
    """Place of each action token in its row."""
    behavior_logprobs: Array
    """float32 [action tokens of all rows]"""
    advantages: Array
    """float32 [action tokens of all rows]"""
    weights: Array
    """float32 [rows]"""
    temperature: Array
    """float32 [rows]"""
    support: Support

    @property
    def rows(self) -> int:
        """Trajectories."""
        return len(self.names)

    @property
    def used_lengths(self) -> Array:
        """Tokens of each row that a forward pass needs: those before its last action token."""
        last: Array = self.actions.values[self.actions.starts[1:] - 1]
        return last

    def micro_batch(self, rows: Array, vocabulary: int) -> MicroBatch:
        """Pad some rows into one micro-batch.

        Raises:
            TrainerError: an action token is not among those that its sampling could draw.
        """
        lengths = self.used_lengths[rows]
        width = int(lengths.max())
        inside = np.arange(width) < lengths[:, None]
        token_ids = np.zeros((len(rows), width), dtype=np.int64)
        flat = self.tokens.starts[rows][:, None] + np.arange(width)
        token_ids[inside] = self.tokens.values[flat[inside]]
        at, owners = self.actions.positions(rows)
        places = self.actions.values[at]
        targets = self.tokens.values[self.tokens.starts[rows][owners] + places]
        support = self.support.mask(rows, owners, vocabulary)
        if support is not None:
            drawable = support.numpy()[np.arange(len(targets)), targets]
            _refuse(
                self.names, ~drawable, rows[owners], "has an action token that it could not draw"
            )
        return MicroBatch(
            token_ids=torch.from_numpy(token_ids),
            predictors=torch.from_numpy(owners * width + places - 1),
            targets=torch.from_numpy(targets),
            behavior_logprobs=torch.from_numpy(self.behavior_logprobs[at]),
            advantages=torch.from_numpy(self.advantages[at]),
            weights=torch.from_numpy(self.weights[rows][owners]),
            temperature=torch.from_numpy(self.temperature[rows][owners]),
            support=support,
        )

    def check(self, vocabulary: int) -> None:
        """Refuse rows that cannot be scored.

        Raises:
            TrainerError: greedy sampling, no action token, an action without anything before it,
                a token id outside the vocabulary, top-p or top-k without the kept tokens.
        """
        if self.rows == 0:
            raise TrainerError("the batch is empty")
        every = np.arange(self.rows)
        _refuse(
            self.names, ~(self.temperature > 0), every, "was sampled greedily; only samples train"
        )
        _refuse(self.names, self.actions.lengths == 0, every, "has no action token")
        first = self.actions.values[self.actions.starts[:-1]]
        _refuse(
            self.names, first == 0, every, "begins with an action token, which nothing predicts"
        )
        owners = np.repeat(every, self.tokens.lengths)
        outside = (self.tokens.values < 0) | (self.tokens.values >= vocabulary)
        _refuse(
            self.names, outside, owners, f"has a token id outside the vocabulary of {vocabulary}"
        )
        for ids in (self.support.allowed.values, self.support.kept.values):
            if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary):
                raise TrainerError(
                    f"a sampling names a token outside the vocabulary of {vocabulary}"
                )


def read_batch(table: pa.Table) -> TrainingBatch:
    """Rows of `trajectories` joined with `advantage` and `weight` of `batches`.

    Raises:
        TrainerError: a column is missing, of another type or not aligned with the others.
    """
    weights = read_column(table, "weight", pa.float64()).to_numpy()
    return _read(table, read_lists(table, "advantage", pa.float32()), weights)


def read_scorable(table: pa.Table) -> TrainingBatch:
    """Rows of `trajectories` alone, with advantages 0: enough to recompute their logprobs.

    Raises:
        TrainerError: a column is missing, of another type or not aligned with the others.
    """
    count = table.num_rows
    nothing = Ragged(np.zeros(count, dtype=np.float32), np.arange(count + 1))
    return _read(table, nothing, np.ones(count))


def _read(table: pa.Table, advantages: Ragged, weights: Array) -> TrainingBatch:
    named = "trajectory_id" in table.column_names
    every = np.arange(table.num_rows)
    names = tuple(table["trajectory_id"].to_pylist() if named else map(str, every))
    tokens = read_lists(table, "token_ids", pa.int32())
    mask = read_lists(table, "action_mask", pa.bool_())
    logprobs = read_lists(table, "logprobs", pa.float32())
    uneven = (tokens.lengths != mask.lengths) | (tokens.lengths != logprobs.lengths)
    _refuse(names, uneven, every, "has token_ids, action_mask and logprobs of different lengths")
    at = np.flatnonzero(mask.values)
    starts = np.searchsorted(at, mask.starts)
    counts = np.diff(starts)
    misfit = (advantages.lengths != 1) & (advantages.lengths != counts)
    _refuse(names, misfit, every, "needs one advantage, or one for each action token")
    single = np.repeat(advantages.lengths == 1, counts)
    spread = np.repeat(advantages.starts[:-1], counts)
    offsets = np.arange(len(at)) - np.repeat(starts[:-1], counts)
    return TrainingBatch(
        names=names,
        tokens=Ragged(tokens.values.astype(np.int64), tokens.starts),
        actions=Ragged(at - np.repeat(mask.starts[:-1], counts), starts),
        behavior_logprobs=logprobs.values[at],
        advantages=advantages.values[spread + np.where(single, 0, offsets)],
        weights=weights.astype(np.float32),
        temperature=read_column(table, "sampling.temperature", pa.float32()).to_numpy(),
        support=_read_support(table, names, counts),
    )


def _read_support(table: pa.Table, names: tuple[str, ...], counts: Array) -> Support:
    every = np.arange(table.num_rows)
    kept_starts, kept = read_nested_lists(table, "kept_token_ids", pa.int32())
    kept_counts = np.diff(kept_starts)
    top_p = read_column(table, "sampling.top_p", pa.float64()).to_numpy()
    top_k = read_column(table, "sampling.top_k", pa.int64()).to_numpy()
    truncates = (top_p < 1.0) | (top_k > 0)
    misfit = np.where(
        truncates, kept_counts != counts, (kept_counts != 0) & (kept_counts != counts)
    )
    _refuse(names, misfit, every, "needs kept_token_ids for each action token (top-p or top-k)")
    return Support(read_lists(table, "sampling.allowed_token_ids", pa.int32()), kept_starts, kept)


def _refuse(names: tuple[str, ...], wrong: Array, rows: Array, what: str) -> None:
    """Raise for the first `wrong` entry; `rows` says which row each entry is of."""
    if wrong.any():
        raise TrainerError(f"trajectory {names[int(rows[int(wrong.argmax())])]} {what}")

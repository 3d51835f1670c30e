"""A stored batch as flat arrays, which are cut into packed or padded micro-batches.

The invariant (token fidelity): every action token appears once, with the behavior logprob,
advantage, weight and sampling it was stored with; nothing is re-tokenized, and a row that the
trainer could not score as it was sampled is refused.

Shapes: A action tokens in row order, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.episode_rows import starts_of
from rollart_flow.errors import BatchError
from rollart_flow.models.pictures import PictureProcessor
from rollart_flow.trainers.batch.columns import Columns, read_columns
from rollart_flow.trainers.batch.micro_batch import MicroBatch, packed_tokens, padded_tokens
from rollart_flow.trainers.batch.passes import packs
from rollart_flow.trainers.batch.pictures import BatchPictures, read_pictures
from rollart_flow.trainers.batch.ragged import (
    Array,
    Ragged,
    read_column,
    read_lists,
    refuse,
    spans,
)
from rollart_flow.trainers.batch.sampling_mask import SamplingMask, read_sampling_mask


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """All rows of a batch, in order of position."""

    names: tuple[str, ...]
    """Trajectory ids, or positions, for error messages."""
    tokens: Ragged
    """int64 token ids of each row."""
    actions: Ragged
    """Place of each action token in its row."""
    behavior_logprobs: Array
    """float32 [action tokens of all rows]; NaN where it is unknown."""
    advantages: Array
    """float32 [action tokens of all rows]"""
    weights: Array
    """float32 [rows]"""
    temperature: Array
    """float32 [rows]"""
    sampling_mask: SamplingMask
    columns: Columns
    packed: bool
    """Whether the rows of a micro-batch lie one after another, instead of padded side by side."""
    episodes: Array
    """int64 [rows]: index of the episode of each row, ascending; branches of one are adjacent."""
    pictures: BatchPictures | None = None
    """Images of the rows, which are padded then; None without any."""

    @property
    def rows(self) -> int:
        """Number of trajectories."""
        return len(self.names)

    @property
    def trees(self) -> Ragged | None:
        """Tokens by which rows are ordered, so that branches with equal prefixes are packed
        together; None if each row is an episode, whose order is by length."""
        return self.tokens if self.packed and self._branched else None

    def count(self, rows: Array) -> int:
        """Return the number of episodes that some rows belong to."""
        return len(np.unique(self.episodes[rows])) if self._branched else len(rows)

    @property
    def _branched(self) -> bool:
        """Whether an episode has several rows."""
        return self.rows > 0 and int(self.episodes[-1]) + 1 < self.rows

    def minibatches(self, count: int, generator: torch.Generator) -> list[Array]:
        """Return the rows of each minibatch, shuffled by episode if there are several."""
        if count == 1:
            return [np.arange(self.rows)]
        episodes = int(self.episodes[-1]) + 1
        begins = np.searchsorted(self.episodes, np.arange(episodes + 1))
        order = torch.randperm(episodes, generator=generator).numpy()
        parts = np.array_split(order, count)
        return [spans(begins[part], np.diff(begins)[part])[0] for part in parts]

    @property
    def used_lengths(self) -> Array:
        """Number of tokens of each row that a forward pass needs: those before its last action
        token."""
        last: Array = self.actions.values[self.actions.starts[1:] - 1]
        return last

    def action_lists(self, values: Array) -> pa.ListArray:
        """Return values of all action tokens as one list for each row, float32."""
        starts = pa.array(self.actions.starts, pa.int32())
        return pa.ListArray.from_arrays(starts, pa.array(values, pa.float32()))

    def micro_batch(self, rows: Array, vocabulary: int) -> MicroBatch:
        """Return some rows as one micro-batch.

        Raises:
            TrainerError: an action token has probability 0 under its stored sampling settings.
        """
        columns = self.columns
        lengths = self.used_lengths[rows]
        lay_out = packed_tokens if self.packed else padded_tokens
        token_ids, laid, packing = lay_out(self.tokens.values, self.tokens.starts[rows], lengths)
        begins = np.cumsum(lengths) - lengths
        at, owners = self.actions.positions(rows)
        places = self.actions.values[at]
        targets = self.tokens.values[self.tokens.starts[rows][owners] + places]
        allowed = self.sampling_mask.mask(rows, owners, vocabulary)
        if allowed is not None:
            possible = allowed.numpy()[np.arange(len(targets)), targets]
            self._check_possible(possible, rows[owners], targets)
        tokens = torch.from_numpy(token_ids)
        return MicroBatch(
            token_ids=tokens,
            packing=packing,
            predictors=torch.from_numpy(laid[begins[owners] + places - 1]),
            targets=torch.from_numpy(targets),
            behavior_logprobs=torch.from_numpy(self.behavior_logprobs[at]),
            advantages=torch.from_numpy(self.advantages[at]),
            weights=torch.from_numpy(self.weights[rows][owners]),
            temperature=torch.from_numpy(self.temperature[rows][owners]),
            sampling_mask=allowed,
            at=at,
            rows=torch.from_numpy(owners),
            chunks=torch.from_numpy(_chunks(places, owners)),
            lags=None if columns.lags is None else torch.from_numpy(columns.lags[at]),
            columns={name: torch.from_numpy(values[at]) for name, values in columns.values.items()},
            features=self._features(rows, tokens),
        )

    def check_passes(self, micro_batch_tokens: int, vocabulary: int) -> None:
        """Make each micro-batch, so that a bad row is found now.

        Raises:
            BatchError: a row cannot be trained on.
        """
        for rows in packs(self.used_lengths, micro_batch_tokens):
            self.micro_batch(rows, vocabulary)

    def _features(self, rows: Array, token_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the further inputs of the model for the rows of a micro-batch."""
        if self.pictures is None:
            return {}
        of, starts = self.actions.values, self.actions.starts
        actions = [of[starts[row] : starts[row + 1]] for row in rows.tolist()]
        return self.pictures.features(rows, token_ids, actions)

    def _check_possible(self, possible: Array, rows: Array, targets: Array) -> None:
        """Refuse an action token that its sampling settings exclude; all arguments are [A]."""
        if not possible.all():
            at = int((~possible).argmax())
            raise BatchError(
                f"trajectory {self.names[int(rows[at])]}: action token {int(targets[at])} has "
                "probability 0 under the stored sampling settings"
            )

    def check(self, vocabulary: int) -> None:
        """Refuse rows that cannot be scored.

        Raises:
            BatchError: greedy sampling, no action token, an action without anything before it,
                a token id outside the vocabulary, top-p or top-k without the kept tokens.
        """
        if self.rows == 0:
            raise BatchError("the batch is empty")
        every = np.arange(self.rows)
        refuse(
            self.names,
            ~(self.temperature > 0),
            every,
            "was sampled greedily (temperature 0), which has no logprobs to train on",
        )
        refuse(self.names, self.actions.lengths == 0, every, "has no action token")
        first = self.actions.values[self.actions.starts[:-1]]
        refuse(
            self.names,
            first == 0,
            every,
            "begins with an action token, which has no context to be predicted from",
        )
        owners = np.repeat(every, self.tokens.lengths)
        outside = (self.tokens.values < 0) | (self.tokens.values >= vocabulary)
        refuse(
            self.names, outside, owners, f"has a token id outside the vocabulary of {vocabulary}"
        )
        for ids in (self.sampling_mask.allowed.values, self.sampling_mask.left.values):
            if len(ids) and (ids.min() < 0 or ids.max() >= vocabulary):
                raise BatchError(f"a sampling names a token outside the vocabulary of {vocabulary}")


def read_batch(
    table: pa.Table,
    algorithm: Algorithm | None = None,
    *,
    packed: bool = True,
    pictures: PictureProcessor | None = None,
) -> TrainingBatch:
    """Read rows of `trajectories` joined with `batches`, with the columns of an algorithm.

    Args: `packed` is `TrainingBatch.packed`; `pictures` is the policy's image processor, if any.

    Raises:
        TrainerError: a column is missing, of another type or not aligned with the others.
    """
    weights = read_column(table, "weight", pa.float64()).to_numpy()
    advantages = read_lists(table, "advantage", pa.float32())
    return _read(table, advantages, weights, algorithm, packed, pictures)


def read_scorable(
    table: pa.Table, *, packed: bool = True, pictures: PictureProcessor | None = None
) -> TrainingBatch:
    """Read rows of `trajectories` alone, with advantages of 0, to recompute their logprobs.

    Raises:
        TrainerError: a column is missing, of another type or not aligned with the others.
    """
    count = table.num_rows
    nothing = Ragged(np.zeros(count, dtype=np.float32), np.arange(count + 1))
    return _read(table, nothing, np.ones(count), None, packed, pictures)


def _read(
    table: pa.Table,
    advantages: Ragged,
    weights: Array,
    algorithm: Algorithm | None,
    packed: bool,
    processor: PictureProcessor | None,
) -> TrainingBatch:
    named = "trajectory_id" in table.column_names
    every = np.arange(table.num_rows)
    names = tuple(table["trajectory_id"].to_pylist() if named else map(str, every))
    tokens = read_lists(table, "token_ids", pa.int32())
    mask = read_lists(table, "action_mask", pa.bool_())
    logprobs = read_lists(table, "logprobs", pa.float32())
    uneven = (tokens.lengths != mask.lengths) | (tokens.lengths != logprobs.lengths)
    refuse(names, uneven, every, "has token_ids, action_mask and logprobs of different lengths")
    at = np.flatnonzero(mask.values)
    starts = np.searchsorted(at, mask.starts)
    counts = np.diff(starts)
    misfit = (advantages.lengths != 1) & (advantages.lengths != counts)
    refuse(names, misfit, every, "needs one advantage, or one for each action token")
    single = np.repeat(advantages.lengths == 1, counts)
    spread = np.repeat(advantages.starts[:-1], counts)
    offsets = np.arange(len(at)) - np.repeat(starts[:-1], counts)
    if algorithm is not None and algorithm.reads_behavior:
        unknown, owners = np.isnan(logprobs.values[at]), np.repeat(every, counts)
        read = f"has behavior logprobs that are not finite, which {algorithm.name} reads"
        refuse(names, unknown, owners, read)
    pictures, begins = read_pictures(table, names, processor), starts_of(table)
    actions = Ragged(at - np.repeat(mask.starts[:-1], counts), starts)
    return TrainingBatch(
        names=names,
        tokens=Ragged(tokens.values.astype(np.int64), tokens.starts),
        actions=actions,
        behavior_logprobs=logprobs.values[at],
        advantages=advantages.values[spread + np.where(single, 0, offsets)],
        weights=weights.astype(np.float32),
        temperature=read_column(table, "sampling.temperature", pa.float32()).to_numpy(),
        sampling_mask=read_sampling_mask(table, names, counts),
        columns=read_columns(table, at, actions, algorithm),
        packed=packed and pictures is None,
        episodes=np.repeat(np.arange(len(begins) - 1), np.diff(begins)),
        pictures=pictures,
    )


def _chunks(places: Array, owners: Array) -> Array:
    """Return the run of each action token; a run ends with its row and where positions skip."""
    begins = (np.diff(owners, prepend=-1) != 0) | (np.diff(places, prepend=-1) != 1)
    runs: Array = np.cumsum(begins) - 1
    return runs

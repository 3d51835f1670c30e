"""The tensors of one forward and backward pass, and the layouts of their tokens.

Shapes: B rows, T their longest, A action tokens in row order, V vocabulary. A packed micro-batch is
one row of N tokens: those of all rows, equal prefixes once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from rollart_flow.models.packing import ChainGroup, Packing
from rollart_flow.trainers.batch.passes import GROUP_COST_TOKENS, buckets, shared_prefixes
from rollart_flow.trainers.batch.ragged import Array, spans

Matrix = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward and backward pass."""

    token_ids: torch.Tensor
    """int64 [B, T], padded on the right with 0; packed int64 [1, N]."""
    packing: Packing | None
    """The rows of a packed micro-batch; None if they are padded."""
    predictors: torch.Tensor
    """int64 [A]: place in the flattened `token_ids` whose logits predict each action token."""
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
    sampling_mask: torch.Tensor | None
    """bool [A, V]: tokens with a probability above 0; None if all tokens have one."""
    at: Array
    """int64 [A]: place of each action token among those of the whole batch."""
    rows: torch.Tensor
    """int64 [A]: row of each action token in the micro-batch."""
    chunks: torch.Tensor
    """int64 [A]: index of the token's run of action tokens between two observations, from 0."""
    lags: torch.Tensor | None
    """int64 [A]: versions that the behavior policy is behind; None if the batch has none."""
    columns: Mapping[str, torch.Tensor]
    """[A] each: columns that the algorithm reads, by name."""
    features: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Further inputs of a model that takes images, by name."""

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, Packing | None]:
        """Arguments of a model that returns the hidden states at `predictors`, [A, E]."""
        return self.token_ids, self.predictors, self.packing

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy with all tensors on a device."""
        if device.type == "cpu":
            return self
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        moved: dict[str, Any] = {
            k: v.to(device) for k, v in values.items() if isinstance(v, torch.Tensor)
        }
        columns = {name: tensor.to(device) for name, tensor in self.columns.items()}
        features = {name: tensor.to(device) for name, tensor in self.features.items()}
        packing = None if self.packing is None else self.packing.to(device)
        return replace(self, **moved, columns=columns, features=features, packing=packing)


def padded_tokens(values: Array, starts: Array, lengths: Array) -> tuple[Matrix, Array, None]:
    """Lay out rows side by side, each padded with 0 to the longest.

    Args:
        values: tokens of all rows of a batch.
        starts: place in `values` of the first token of each row [B].
        lengths: tokens of each row that are needed [B].

    Returns:
        (token ids [B, T], place of each needed token in them, row after row, None).
    """
    width = int(lengths.max())
    places, _ = spans(np.arange(len(lengths)) * width, lengths)
    token_ids = np.zeros((len(lengths), width), dtype=np.int64)
    token_ids.reshape(-1)[places] = values[spans(starts, lengths)[0]]
    return token_ids, places, None


def packed_tokens(values: Array, starts: Array, lengths: Array) -> tuple[Matrix, Array, Packing]:
    """Lay out the distinct prefixes of rows in one row; equal prefixes are computed once.

    Attempts at one task begin with the same tokens, whose states are the same in all of them.

    Args: those of `padded_tokens`.

    Returns:
        (token ids [1, N], place of each needed token in them, row after row, packing).
    """
    begins = np.cumsum(lengths) - lengths
    places = np.empty(int(lengths.sum()), dtype=np.int64)
    shared = np.zeros_like(lengths)
    count = 0
    for row, before, common in shared_prefixes(values, starts, lengths):
        own = places[begins[row] :][: lengths[row]]
        own[:common] = places[begins[before] :][:common]
        own[common:] = np.arange(count, count + len(own) - common)
        count += len(own) - common
        shared[row] = common
    every, owners = spans(starts, lengths)
    token_ids, positions = np.empty((2, count), dtype=np.int64)
    token_ids[places] = values[every]
    positions[places] = every - starts[owners]
    return token_ids[None], places, _packing(places, begins, lengths, shared, positions)


def _packing(
    places: Array, begins: Array, lengths: Array, shared: Array, positions: Array
) -> Packing:
    """Group the rows that have tokens of their own; another row begins with each of the others.

    Args: `begins` [B] is where each row begins in `places`, `shared` [B] the number of its first
    tokens that are another row's.
    """
    computed_in, base = np.empty_like(positions), 0
    rows, groups = np.flatnonzero(shared < lengths), []
    for part in buckets(lengths[rows], len(places), GROUP_COST_TOKENS):
        chains = rows[part]
        longest = int(lengths[chains[-1]])
        slots = np.arange(len(chains)) * longest
        tokens = np.zeros(len(chains) * longest, dtype=np.int64)
        inside, _ = spans(slots, lengths[chains])
        tokens[inside] = places[spans(begins[chains], lengths[chains])[0]]
        groups.append(ChainGroup(len(chains), longest, torch.from_numpy(tokens)))
        own, _ = spans(slots + shared[chains], lengths[chains] - shared[chains])
        computed_in[tokens[own]] = base + own
        base += len(tokens)
    return Packing(torch.from_numpy(positions), torch.from_numpy(computed_in), tuple(groups))

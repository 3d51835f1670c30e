"""The tensors of one forward and backward pass, and the layouts of their tokens.

Shapes: B rows, T their longest, A action tokens in row order, V vocabulary. A packed micro-batch is
one row of all its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from rollart_flow.models.packing import Group, Packing
from rollart_flow.trainers.batch.passes import GROUP_COST_TOKENS, buckets
from rollart_flow.trainers.batch.ragged import Array, spans

Matrix = np.ndarray[tuple[int, int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tensors of one forward and backward pass."""

    token_ids: torch.Tensor
    """int64 [B, T], padded on the right with 0; packed int64 [1, tokens]."""
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

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, Packing | None]:
        """Arguments of a model that returns the hidden states at `predictors`, [A, E]."""
        return self.token_ids, self.predictors, self.packing

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy with all tensors on a device."""
        if device.type == "cpu":
            return self
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            k: v.to(device) for k, v in values.items() if isinstance(v, torch.Tensor)
        }
        columns = {name: tensor.to(device) for name, tensor in self.columns.items()}
        packing = None if self.packing is None else self.packing.to(device)
        return replace(self, **moved, columns=columns, packing=packing)


def padded_tokens(values: Array, starts: Array, lengths: Array) -> tuple[Matrix, Array, None]:
    """Lay out rows side by side, each padded with 0 to the longest.

    Args:
        values: tokens of all rows of a batch.
        starts: place in `values` of the first token of each row [B].
        lengths: tokens of each row that are needed [B].

    Returns:
        (token ids [B, T], place of the first token of each row in it, None).
    """
    width = int(lengths.max())
    inside = np.arange(width) < lengths[:, None]
    token_ids = np.zeros((len(lengths), width), dtype=np.int64)
    flat = starts[:, None] + np.arange(width)
    token_ids[inside] = values[flat[inside]]
    return token_ids, np.arange(len(lengths)) * width, None


def packed_tokens(values: Array, starts: Array, lengths: Array) -> tuple[Matrix, Array, Packing]:
    """Lay out rows one after another, by length, so that a group of attention is adjacent.

    Args: those of `padded_tokens`.

    Returns:
        (token ids [1, tokens], place of the first token of each row in it, packing).
    """
    parts = buckets(lengths, int(lengths.sum()), GROUP_COST_TOKENS)
    order = np.concatenate(parts)
    begins = np.empty_like(lengths)
    begins[order] = np.cumsum(lengths[order]) - lengths[order]
    places, _ = spans(starts[order], lengths[order])
    positions, _ = spans(np.zeros_like(lengths), lengths[order])
    groups = []
    for part in parts:
        longest = int(lengths[part[-1]])
        tokens, _ = spans(np.arange(len(part)) * longest, lengths[part])
        groups.append(Group(len(part), longest, torch.from_numpy(tokens)))
    packing = Packing(torch.from_numpy(positions), tuple(groups))
    return values[places][None], begins, packing

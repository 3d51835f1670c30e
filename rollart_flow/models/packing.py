"""Attention over packed rows: token chains that lie one after another in a single row.

The invariant: a token attends to the earlier tokens of its own chain alone, at the positions that
it has in that chain, so that every chain gets the results that it gets by itself, up to rounding.

Attention runs over groups of chains of similar lengths, which alone are padded; all other layers
compute tokens only. Shapes: N tokens, H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive chains that attend in one padded call."""

    chains: int
    longest: int
    places: torch.Tensor
    """int64 [tokens of the group]: place of each token in the padded [chains * longest]."""

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """Map [tokens of the group, heads, D] to [chains, heads, longest, D], padded with 0."""
        rows = x.new_zeros((self.chains * self.longest, *x.shape[1:]))
        return (
            rows.index_copy(0, self.places, x).view(self.chains, -1, *x.shape[1:]).transpose(1, 2)
        )


@dataclass(frozen=True, slots=True)
class Packing:
    """The chains in a packed row of N tokens."""

    positions: torch.Tensor
    """int64 [N]: position of each token in its chain."""
    groups: tuple[Group, ...]
    """All chains in order."""

    @property
    def longest(self) -> int:
        """Length of the longest chain."""
        return max(group.longest for group in self.groups)

    def to(self, device: torch.device) -> Packing:
        """Return a copy with all tensors on a device."""
        groups = (Group(g.chains, g.longest, g.places.to(device)) for g in self.groups)
        return Packing(self.positions.to(device), tuple(groups))

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Map queries [N, H, D] and keys and values [N, K, D] to [N, H * D]."""
        sizes = [len(group.places) for group in self.groups]
        mixed = [
            causal_attention(*map(group.padded, sides))
            .transpose(1, 2)
            .flatten(0, 1)
            .index_select(0, group.places)
            for group, *sides in zip(
                self.groups, *(torch.split(x, sizes) for x in (queries, keys, values)), strict=True
            )
        ]
        return torch.cat(mixed).flatten(1)


def causal_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Map queries [B, H, T, D] and keys and values [B, K, T, D] to [B, H, T, D]."""
    return functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, enable_gqa=True
    )

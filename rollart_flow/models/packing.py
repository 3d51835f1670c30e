"""Attention over packed rows: the tokens of several chains in one row, common prefixes once.

The invariant: a token attends to the tokens before it in its own chain alone, at the positions that
it has in that chain, so that every chain gets the results that it gets by itself, up to rounding.
A token that several chains begin with has the same results in all of them, and is computed once.

Attention runs over groups of chains of similar lengths, which alone are padded; all other layers
compute the N tokens of the row only. Shapes: H heads, K key-value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Causal attention of queries [B, H, T, D] over keys and values [B, K, T, D]: [B, H, T, D]."""


@dataclass(frozen=True, slots=True)
class ChainGroup:
    """Chains that attend in one padded call."""

    chains: int
    longest: int
    tokens: torch.Tensor
    """int64 [chains * longest]: place of each token in the row; any place for padding, which lies
    behind the chain."""

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """Map [N, heads, D] to [chains, heads, longest, D]."""
        shape = (self.chains, self.longest, *x.shape[1:])
        return x.index_select(0, self.tokens).view(shape).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Packing:
    """The chains in a packed row of N tokens."""

    positions: torch.Tensor
    """int64 [N]: position of each token in its chains."""
    computed_in: torch.Tensor
    """int64 [N]: place of each token in the padded tokens of all groups, one after another."""
    groups: tuple[ChainGroup, ...]

    @property
    def longest(self) -> int:
        """Length of the longest chain."""
        return max(group.longest for group in self.groups)

    def to(self, device: torch.device) -> Packing:
        """Return a copy with all tensors on a device."""
        groups = (ChainGroup(g.chains, g.longest, g.tokens.to(device)) for g in self.groups)
        return Packing(self.positions.to(device), self.computed_in.to(device), tuple(groups))

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        attention: Attend | None = None,
    ) -> torch.Tensor:
        """Map queries [N, H, D] and keys and values [N, K, D] to [N, H * D].

        Args: `attention` computes one group of chains; `causal_attention` by default.
        """
        one = attention or causal_attention
        mixed = [
            one(*map(group.of, (queries, keys, values))).transpose(1, 2).flatten(0, 1)
            for group in self.groups
        ]
        return torch.cat(mixed).index_select(0, self.computed_in).flatten(1)


def causal_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Map queries [B, H, T, D] and keys and values [B, K, T, D] to [B, H, T, D]."""
    return functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, enable_gqa=True
    )

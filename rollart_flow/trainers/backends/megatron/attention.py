"""Replacements for Megatron modules: attention, and rotary angles on a CPU.

Megatron's own attention needs a GPU, and that of Transformer Engine knows packed rows in half
precision only, while this trainer computes in float32.

Invariant: shapes, names and results are those of the replaced modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from rollart_flow.models.packing import Packing, causal_attention
from rollart_flow.trainers.backends.megatron.core import RotaryEmbedding


class TorchAttention(torch.nn.Module):
    """Causal grouped-query attention by torch."""

    def __init__(self, **_: Any) -> None:
        """Ignore the layer's arguments, which the shapes of its tensors imply too."""
        super().__init__()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Packing | None,
        **_: Any,
    ) -> torch.Tensor:
        """Map [T, B, heads, D] each, keys and values with fewer heads, to [T, B, heads x D].

        Args: `mask` says which positions of a packed row are one chain; positions after the last
        chain are padding. Without it each row is one chain.
        """
        sides = (query, key, value)
        if mask is None:
            mixed = causal_attention(*(x.permute(1, 2, 0, 3) for x in sides))
            return mixed.permute(2, 0, 1, 3).flatten(2)
        tokens = len(mask.positions)
        mixed = mask.attend(*(x[:tokens, 0] for x in sides))
        return functional.pad(mixed, (0, 0, 0, len(query) - tokens))[:, None]


class CpuRotary(RotaryEmbedding):  # type: ignore[misc]
    """Rotary angles that stay on the CPU."""

    def get_emb(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Return float32 [T, 1, 1, D], with each angle for both members of its pair."""
        angles = self.get_freqs_non_repeated(max_seq_len, offset)
        return torch.cat((angles, angles), -1)[:, None, None, :]

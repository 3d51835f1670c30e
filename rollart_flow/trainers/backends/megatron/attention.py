"""Replacements for Megatron modules that compute on GPUs only: attention and rotary angles.

Invariant: shapes, names and results are those of the replaced modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from rollart_flow.trainers.backends.megatron.core import RotaryEmbedding


class TorchAttention(torch.nn.Module):
    """Causal grouped-query attention by torch, in place of `DotProductAttention`."""

    def __init__(self, **_: Any) -> None:
        """Ignore the layer's arguments, which the shapes of its tensors imply too."""
        super().__init__()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        """Map [T, B, heads, D] each, keys and values with fewer heads, to [T, B, heads x D].

        Further arguments describe the mask, which is always causal here.
        """
        queries, keys, values = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=True
        )
        return mixed.permute(2, 0, 1, 3).flatten(2)


class CpuRotary(RotaryEmbedding):  # type: ignore[misc]
    """Rotary angles that stay on the CPU."""

    def get_emb(self, max_seq_len: int, offset: int = 0) -> torch.Tensor:
        """Return float32 [T, 1, 1, D], with each angle for both members of its pair."""
        angles = self.get_freqs_non_repeated(max_seq_len, offset)
        return torch.cat((angles, angles), -1)[:, None, None, :]

"""Causal attention for the models of transformers, over packed or padded rows.

The function is registered as an attention implementation of transformers, which passes the keywords
of a model's call on to it: `packing` says which tokens attend to one another. The invariant: a
chain of a packed row gets the results that it gets by itself, with the architecture's own scale,
window, soft cap and sinks.

Source: transformers 5.19, `AttentionInterface` and `integrations/sdpa_attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rollart_flow.models.hf.slots import Slots
from rollart_flow.models.packing import Packing

NAME = "rollart_flow"
"""Name of the attention implementation in transformers."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packing: Packing | None = None,
    slots: Slots | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Map queries [B, H, T, D] and keys and values [B, K, T, D] to [B, T, H, D].

    Args:
        packing: chains of a packed row; None if each row is one chain.
        slots: places of the tokens in a cache, whose tokens before them are seen too.
        scaling: factor of the scores; the inverse root of D by default.
        sliding_window: number of tokens that each token sees, itself included; None for all.
        softcap: bound of the scores, approached by a hyperbolic tangent; None for none.
        s_aux: score of the sink of each head [H], which takes part in the softmax alone.
    """
    if not getattr(module, "is_causal", True):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
    scores = partial(_attend, scaling=scaling, softcap=softcap, sinks=s_aux)
    if slots is not None:
        index: Any = module.layer_idx
        key, value = slots.store(index, key, value)
        return scores(query, key, value, slots.seen(sliding_window)).transpose(1, 2), None
    one = partial(_causal, scores=scores, window=sliding_window)
    if packing is None:
        return one(query, key, value).transpose(1, 2), None
    queries, keys, values = (side.squeeze(0).transpose(0, 1) for side in (query, key, value))
    mixed = packing.attend(queries, keys, values, attention=one)
    return mixed.view(1, len(mixed), query.shape[1], -1), None


def _causal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scores: Callable[..., torch.Tensor],
    window: int | None,
) -> torch.Tensor:
    """Attend within chains that begin with the first token."""
    length = query.shape[2]
    narrow = window is not None and window < length
    return scores(query, key, value, _seen(length, window, query.device) if narrow else None)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor | None,
    *,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Map [B, H, T, D] and [B, K, L, D] to [B, H, T, D].

    Args: `seen` is bool, broadcast to [B, H, T, L]; None for causal attention of T = L tokens.
    """
    if softcap is None and sinks is None:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, is_causal=seen is None, scale=scaling,
            enable_gqa=True,
        )  # fmt: skip
    groups = query.shape[1] // key.shape[1]
    key, value = (side.repeat_interleave(groups, 1) for side in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if seen is None:
        seen = _seen(query.shape[2], None, query.device)
    scores = scores.masked_fill(~seen, float("-inf")).float()
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1, 1).expand(len(scores), -1, query.shape[2], 1)
        scores = torch.cat([scores, sink], -1)
    weights = torch.softmax(scores, -1)[..., : key.shape[2]].to(value.dtype)
    return weights @ value


def _seen(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return bool [T, T]: whether each token sees each other one."""
    places = torch.arange(length, device=device)
    back = places[:, None] - places
    seen = back >= 0
    return seen if window is None else seen & (back < window)


AttentionInterface.register(NAME, attend)

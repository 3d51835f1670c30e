"""Qwen3 for generation: the function of `models.qwen3` over a batched key-value cache.

Each row of the cache is one token chain with its own length. No keys or values are copied between
steps: a decode step attends over the rows in place. Invariant: the logits equal those of
`models.qwen3` over the whole chain, whatever else is in the cache, up to rounding.

The GPU-specific behavior follows torch's documentation of `scaled_dot_product_attention` and of
CUDA graphs; `models.device` states which devices this code has run on.

Shapes: B rows of a decode step, R rows and T tokens of a prefill, L positions, E hidden, H heads, K
key-value heads, D head dim.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional

from rollart_flow.models.cached_model import CachedModel, Int64Array
from rollart_flow.models.device import CPU
from rollart_flow.models.fused import FusedLayer, FusedWeights
from rollart_flow.models.key_values import KeyValues
from rollart_flow.models.language_model import ModelShape
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.models.rotary import rotary_tables


class CachedQwen3:
    """A Qwen3 model in inference form, with its weights in buffers at fixed addresses."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        """Copy weights in Hugging Face names; they must have passed `folder.check_tensors`."""
        self.config = config
        self.device = device
        self._dtype = dtype
        self._root_eps = torch.tensor(config.rms_norm_eps**0.5)
        cos, sin = rotary_tables(config.head_dim, config.rope_theta, config.max_position_embeddings)
        turns = (torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))
        self._turns = torch.stack(turns, 1)[:, :, None].to(device, dtype)
        """[positions, 2, 1, D]: cosines, and sines with the sign of the rotation."""
        self._weights = FusedWeights(config, dtype, device)
        self.load(tensors)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite all weights with those of `tensors`, which may be on any device."""
        self._weights.load(tensors)

    def prefill(
        self, cache: KeyValues, tokens: Int64Array, rows: Int64Array, starts: Int64Array,
        counts: Int64Array,
    ) -> None:  # fmt: skip
        """Append the keys and values of new tokens to the rows of the cache.

        Args:
            cache: the cache to read and write.
            tokens: [R, T], padded on the right with any token.
            rows: [R], distinct.
            starts: [R], number of tokens that each row holds.
            counts: [R], number of tokens of each row that are not padding.
        """
        end = int((starts + counts).max())
        there = (self._there(array) for array in (tokens, rows, starts, counts))
        self._prefill(cache, end, *there)

    def _prefill(
        self, cache: KeyValues, end: int, tokens: torch.Tensor, rows: torch.Tensor,
        starts: torch.Tensor, counts: torch.Tensor,
    ) -> None:  # fmt: skip
        """Prefill with tensors on the device; no row holds more than `end` tokens afterwards."""
        steps = torch.arange(tokens.shape[1], device=self.device)
        positions = starts[:, None] + steps
        real = steps < counts[:, None]
        places = torch.where(real, positions, cache.scratch)
        turns = self._turns[positions.clamp_max(cache.scratch - 1).flatten()]
        visible = torch.arange(end, device=self.device) <= positions[:, :, None]
        flat = self._places(cache, rows[:, None], places)
        hidden = functional.embedding(tokens.flatten(), self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            queries, keys, values = self._project(layer, hidden, turns)
            all_keys, all_values = cache.keys[index], cache.values[index]
            _write(all_keys, flat, keys)
            _write(all_values, flat, values)
            if index + 1 == len(self._weights.layers):
                return  # the last layer's output for these tokens is not needed
            mixed = _attend(
                queries.view(*tokens.shape, *queries.shape[1:]).transpose(1, 2),
                all_keys[:, :, :end].index_select(0, rows),
                all_values[:, :, :end].index_select(0, rows),
                visible[:, None],
            )
            hidden = self._finish(layer, hidden, mixed.transpose(1, 2).reshape(len(hidden), -1))

    def decode(
        self, cache: KeyValues, tokens: Int64Array, held: Int64Array, places: Int64Array,
        wanted: Int64Array | None,
    ) -> torch.Tensor:  # fmt: skip
        """Append one token to each of the first B rows and compute the logits of the next tokens.

        Args:
            cache: the cache to read and write.
            tokens: [B].
            held: [B], number of tokens that each row holds, which is the position of the new token.
            places: [B], position to write to: `held`, or scratch for an idle row.
            wanted: rows whose logits to compute; None for all.

        Returns:
            float32 [B or len(wanted), vocab_size], on the device.
        """
        end = int(held.max()) + 1
        equal = bool((held == end - 1).all())  # no row has positions to hide
        there = (self._there(array) for array in (tokens, held, places))
        hidden = self._advance(cache, end, *there, equal=equal)
        if wanted is not None:
            hidden = hidden.index_select(0, self._there(wanted))
        return self._logits(hidden)

    def decode_there(self, cache: KeyValues, feed: torch.Tensor, end: int) -> torch.Tensor:
        """Decode with tokens, held and places [3, B] that are on the device already.

        Every row must hold fewer than `end` tokens. The call waits for nothing, so that it can be
        captured in a CUDA graph.
        """
        return self._logits(self._advance(cache, end, *feed.unbind()))

    def _advance(
        self, cache: KeyValues, end: int, tokens: torch.Tensor, held: torch.Tensor,
        places: torch.Tensor, *, equal: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """Return the hidden states [B, E] of the new tokens, before the final norm; `equal` says
        that every row holds `end` - 1 tokens.
        """
        count, width, kv_heads = len(tokens), self.config.head_dim, self.config.num_key_value_heads
        turns = self._turns[held]
        bias = None
        if not equal:
            hidden_from = torch.arange(end, device=self.device) > held[:, None]
            bias = torch.zeros_like(hidden_from, dtype=self._dtype)
            bias = bias.masked_fill_(hidden_from, float("-inf"))[:, None]
            bias = bias.expand(-1, kv_heads, -1).reshape(-1, 1, end)
        flat = self._places(cache, torch.arange(count, device=self.device), places)
        hidden = functional.embedding(tokens, self._weights.embedding)
        for index, layer in enumerate(self._weights.layers):
            queries, keys, values = self._project(layer, hidden, turns)
            all_keys = _write(cache.keys[index], flat, keys)[: count * kv_heads, :end]
            all_values = _write(cache.values[index], flat, values)[: count * kv_heads, :end]
            grouped = queries.reshape(count * kv_heads, -1, width)
            scores = _scores(grouped, all_keys.mT, bias)
            weights = torch.softmax(scores, -1, dtype=torch.float32).to(self._dtype)
            hidden = self._finish(layer, hidden, torch.bmm(weights, all_values).view(count, -1))
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(
            self._normalize(hidden, self._weights.norm), self._weights.head
        ).float()

    def _project(
        self, layer: FusedLayer, hidden: torch.Tensor, turns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project [N, E] to rotated and scaled queries [N, H, D], rotated keys and values [N, K,
        D].
        """
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        fused = functional.linear(self._normalize(hidden, layer.input_norm), layer.qkv)
        split = fused.view(len(hidden), -1, config.head_dim)
        turning = self._normalize(split[:, : heads + kv_heads]).mul_(layer.qk_norm)
        cos, sin = turns.unbind(1)
        turned = (turning * cos).addcmul_(turning.roll(config.head_dim // 2, -1), sin)
        return turned[:, :heads], turned[:, heads:], split[:, heads + kv_heads :]

    def _finish(self, layer: FusedLayer, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Apply the output projection and the feed-forward block, with both residuals, to [N, E]
        and [N, H x D].
        """
        hidden = torch.addmm(hidden, mixed, layer.output.t())
        fused = functional.linear(self._normalize(hidden, layer.mlp_norm), layer.gate_up)
        gate, up = fused.chunk(2, -1)
        return torch.addmm(hidden, functional.silu(gate).mul_(up), layer.down.t())

    def _places(self, cache: KeyValues, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return the index of each token's keys, head by head, in a layer's flat keys."""
        heads = torch.arange(self.config.num_key_value_heads, device=self.device)
        first = (rows * len(heads))[..., None] + heads
        return (first * (cache.scratch + 1) + places[..., None]).flatten()

    def _normalize(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        if self.device != CPU or self._dtype != torch.float32:
            return functional.rms_norm(x, x.shape[-1:], weight, self.config.rms_norm_eps)
        # sqrt(mean(x ** 2) + eps), in half as many operators as torch's norm has on a CPU
        norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True).mul_(
            x.shape[-1] ** -0.5
        )
        normed: torch.Tensor = x / norm.hypot_(self._root_eps)
        return normed if weight is None else normed.mul_(weight)

    def _there(self, array: Int64Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def _write(side: torch.Tensor, flat: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Write keys or values [N, K, D] to the places `flat` of a layer's [rows, K, L, D]; return the
    layer as [rows x K, L, D].
    """
    width = side.shape[-1]
    side.view(-1, width).index_copy_(0, flat, tokens.reshape(-1, width))
    return side.flatten(0, 1)


def _scores(queries: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the attention scores of [N, G, D] over [N, D, L], with a bias of [N, 1, L]."""
    if bias is None:
        return torch.bmm(queries, keys)
    return torch.baddbmm(bias, queries, keys)


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
) -> torch.Tensor:
    """Attention of queries [R, H, T, D] over keys and values [R, K, L, D], masked by `visible`; the
    queries are scaled."""
    grouped = True
    if queries.device != CPU:  # its fast kernels take either a mask or groups of heads
        groups = queries.shape[1] // keys.shape[1]
        keys, values = (side.repeat_interleave(groups, 1) for side in (keys, values))
        grouped = False
    return functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=visible, scale=1.0, enable_gqa=grouped
    )


def cached_model(
    config: ModelShape,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
) -> CachedModel:
    """Return the model of this library in inference form, or that of transformers."""
    if isinstance(config, ModelConfig):
        return CachedQwen3(config, tensors, dtype, device)
    from rollart_flow.models.hf.cached import CachedTransformers
    from rollart_flow.models.hf.config import TransformersConfig

    assert isinstance(config, TransformersConfig)
    return CachedTransformers(config, tensors, dtype, device)

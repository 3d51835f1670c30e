"""Qwen3 for generation: the function of `models.qwen3` over a batched cache of keys and values.

Each row of the cache is one token chain with a length of its own. Nothing is copied from step to
step: a decode step attends over the rows where they lie. Projections that read the same input are
fused, since at small sizes a step costs as much as it has operators. The invariant: logits equal
those of `models.qwen3` over the whole chain, whatever else is in the cache.

Shapes: B rows of a decode step, R rows and T tokens of a prefill, L positions, E hidden, H heads,
K key-value heads, D head dim.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from rollart_flow.models.qwen3 import ModelConfig, rotary_tables


class KeyValues:
    """Keys and values of `rows` chains of up to `length` tokens, [layers, rows, K, L, D] each.

    Position `length` of each row is scratch: whatever must not be kept is written there. Memory is
    touched, and so taken from the system, only where tokens are written.
    """

    def __init__(self, config: ModelConfig, rows: int, length: int, dtype: torch.dtype) -> None:
        heads, width = config.num_key_value_heads, config.head_dim
        self._shape = (config.num_hidden_layers, rows, heads, length + 1, width)
        self.keys = torch.zeros(self._shape, dtype=dtype)
        self.values = torch.zeros(self._shape, dtype=dtype)
        self.scratch = length

    def copy_row(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of a row."""
        for side in (self.keys, self.values):
            side[:, target, :, :tokens] = side[:, source, :, :tokens]

    def swap_rows(self, one: int, other: int, one_tokens: int, other_tokens: int) -> None:
        """Exchange the first tokens of two rows, as many as each holds."""
        for side in (self.keys, self.values):
            kept = side[:, one, :, :one_tokens].clone()
            side[:, one, :, :other_tokens] = side[:, other, :, :other_tokens]
            side[:, other, :, :one_tokens] = kept

    def clear(self) -> None:
        """Forget everything, values that are not finite included."""
        self.keys.zero_()
        self.values.zero_()

    def release(self) -> int:
        """Hold no memory until `restore`; bytes that were reserved."""
        held = self.keys.nbytes + self.values.nbytes
        self.keys = self.values = self.keys.new_empty(0)
        return held

    def restore(self) -> None:
        """Hold memory again, with nothing in it; without effect where it was not released."""
        if not self.keys.numel():
            self.keys = self.keys.new_zeros(self._shape)
            self.values = self.values.new_zeros(self._shape)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Fused weights of one layer, [out, in]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qk_norm: torch.Tensor
    """[H + K, D]"""
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class CachedQwen3:
    """Weights in the form that generation wants; owns its memory."""

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ) -> None:
        """Copy weights in Hugging Face names; they must have passed `folder.check_tensors`."""
        self.config = config
        self._dtype = dtype
        cos, sin = rotary_tables(config, config.max_position_embeddings)
        # x * cos + roll(x) * sin with the sign of the rotation in sin: one operator fewer
        self._cos = torch.cat([cos, cos], -1).to(dtype)
        self._sin = torch.cat([-sin, sin], -1).to(dtype)
        self.load(tensors)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace all weights with copies of `tensors`."""
        copies = {name: self._copy(tensor) for name, tensor in tensors.items()}
        count = self.config.num_hidden_layers
        layers = [self._fuse(copies, f"model.layers.{index}.") for index in range(count)]
        self._layers = layers
        self._embedding = copies["model.embed_tokens.weight"]
        self._norm = copies["model.norm.weight"]
        self._head = copies.get("lm_head.weight", self._embedding)

    def prefill(
        self, cache: KeyValues, tokens: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor,
        counts: torch.Tensor,
    ) -> None:  # fmt: skip
        """Write keys and values of new tokens into the cache, after what each row holds.

        Args:
            cache: what is read and written.
            tokens: int64 [R, T], padded on the right with any token.
            rows: int64 [R], distinct.
            starts: int64 [R], tokens that each row holds.
            counts: int64 [R], tokens of each row that are no padding.
        """
        steps = torch.arange(tokens.shape[1])
        positions = starts[:, None] + steps
        real = steps < counts[:, None]
        places = torch.where(real, positions, cache.scratch)
        turned = positions.clamp_max(cache.scratch - 1)
        cos, sin = self._cos[turned][:, :, None], self._sin[turned][:, :, None]
        end = int((starts + counts).max())
        visible = (torch.arange(end) <= positions[:, :, None])[:, None]
        hidden = functional.embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            queries, keys, values = self._project(layer, hidden, cos, sin)
            all_keys, all_values = cache.keys[index], cache.values[index]
            all_keys[rows[:, None], :, places] = keys
            all_values[rows[:, None], :, places] = values
            if index + 1 == len(self._layers):
                return  # nobody reads what the last layer makes of these tokens
            mixed = functional.scaled_dot_product_attention(
                queries.transpose(1, 2),
                all_keys[:, :, :end].index_select(0, rows),
                all_values[:, :, :end].index_select(0, rows),
                attn_mask=visible,
                enable_gqa=True,
            )
            hidden = self._finish(layer, hidden, mixed.transpose(1, 2).flatten(2))

    def decode(
        self, cache: KeyValues, tokens: torch.Tensor, held: torch.Tensor, places: torch.Tensor,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Feed one token to each of the first B rows; logits of what comes next.

        Args:
            cache: what is read and written.
            tokens: int64 [B].
            held: int64 [B], tokens that each row holds; the position of its new one.
            places: int64 [B], where it is written: `held`, or scratch for an idle row.
            wanted: int64 rows whose logits to compute; None for all.

        Returns:
            float32 [B or len(wanted), vocab_size].
        """
        count = len(tokens)
        width = self.config.head_dim
        kv_heads = self.config.num_key_value_heads
        end = int(held.max()) + 1
        cos, sin = self._cos[held][:, None], self._sin[held][:, None]
        bias = torch.where(torch.arange(end) <= held[:, None], 0.0, float("-inf"))
        bias = bias[:, None, None]
        heads = torch.arange(count * kv_heads).view(count, kv_heads)
        flat = (heads * (cache.scratch + 1) + places[:, None]).flatten()
        hidden = functional.embedding(tokens, self._embedding)
        for index, layer in enumerate(self._layers):
            queries, keys, values = self._project(layer, hidden, cos, sin)
            all_keys, all_values = cache.keys[index], cache.values[index]
            all_keys.view(-1, width).index_copy_(0, flat, keys.reshape(-1, width))
            all_values.view(-1, width).index_copy_(0, flat, values.reshape(-1, width))
            grouped = queries.reshape(count, kv_heads, -1, width) * width**-0.5
            scores = torch.matmul(grouped, all_keys[:count, :, :end].transpose(2, 3))
            weights = torch.softmax(scores.float() + bias, -1).to(self._dtype)
            mixed = torch.matmul(weights, all_values[:count, :, :end])
            hidden = self._finish(layer, hidden, mixed.view(count, -1))
        if wanted is not None:
            hidden = hidden.index_select(0, wanted)
        return functional.linear(self._normalize(hidden, self._norm), self._head).float()

    def _project(
        self, layer: _Layer, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[..., E] to rotated queries [..., H, D] and keys [..., K, D], and values [..., K, D]."""
        config = self.config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        fused = functional.linear(self._normalize(hidden, layer.input_norm), layer.qkv)
        split = fused.view(*fused.shape[:-1], heads + 2 * kv_heads, config.head_dim)
        turning = self._normalize(split[..., : heads + kv_heads, :]) * layer.qk_norm
        turned = torch.addcmul(turning * cos, turning.roll(config.head_dim // 2, -1), sin)
        return turned[..., :heads, :], turned[..., heads:, :], split[..., heads + kv_heads :, :]

    def _finish(self, layer: _Layer, hidden: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Output projection and feed-forward block, with both residuals."""
        hidden = hidden + functional.linear(mixed, layer.output)
        fused = functional.linear(self._normalize(hidden, layer.mlp_norm), layer.gate_up)
        gate, up = fused.chunk(2, -1)
        return hidden + functional.linear(functional.silu(gate) * up, layer.down)

    def _normalize(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], weight, self.config.rms_norm_eps)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(self._dtype, copy=True)

    def _fuse(self, tensors: Mapping[str, torch.Tensor], prefix: str) -> _Layer:
        def joined(*names: str) -> torch.Tensor:
            return torch.cat([tensors[f"{prefix}{name}.weight"] for name in names])

        def stacked(name: str, count: int) -> torch.Tensor:
            return tensors[f"{prefix}self_attn.{name}.weight"].expand(count, -1)

        heads, kv_heads = self.config.num_attention_heads, self.config.num_key_value_heads
        return _Layer(
            input_norm=tensors[f"{prefix}input_layernorm.weight"],
            qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            qk_norm=torch.cat([stacked("q_norm", heads), stacked("k_norm", kv_heads)]),
            output=tensors[f"{prefix}self_attn.o_proj.weight"],
            mlp_norm=tensors[f"{prefix}post_attention_layernorm.weight"],
            gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
            down=tensors[f"{prefix}mlp.down_proj.weight"],
        )

"""The weights of Qwen3 in the form that generation uses.

Projections that read the same input are fused into one matrix, since at small sizes the number of
operators dominates the cost of a step.

Invariant: the tensors keep their addresses. New weights are copied into them, so that CUDA graphs
captured with these addresses stay valid.

Shapes: H heads, K key-value heads, D head dim.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rollart_flow.models.qwen3 import ModelConfig


@dataclass(frozen=True, slots=True)
class FusedLayer:
    """Fused weights of one layer, [out, in]."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qk_norm: torch.Tensor
    """[H + K, D]; the rows of the queries hold the scale of the scores, D ** -0.5, too."""
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class FusedWeights:
    """All weights of a model, in buffers that this object owns."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the buffers; `load` fills them."""
        self._config = config
        self._dtype = dtype
        self._device = device
        self.layers = [self._layer() for _ in range(config.num_hidden_layers)]
        self.embedding = self._empty(config.vocab_size, config.hidden_size)
        self.norm = self._empty(config.hidden_size)
        tied = config.tie_word_embeddings
        self.head = self.embedding if tied else torch.empty_like(self.embedding)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite all weights with tensors in Hugging Face names, which may be on any device.

        The tensors must have passed `folder.check_tensors`.
        """
        for index, layer in enumerate(self.layers):
            self._fuse(layer, tensors, f"model.layers.{index}.")
        self.embedding.copy_(tensors["model.embed_tokens.weight"])
        self.norm.copy_(tensors["model.norm.weight"])
        if self.head is not self.embedding:
            self.head.copy_(tensors["lm_head.weight"])

    def _empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _layer(self) -> FusedLayer:
        """Allocate the buffers of one layer."""
        config, hidden = self._config, self._config.hidden_size
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        return FusedLayer(
            input_norm=self._empty(hidden),
            qkv=self._empty((heads + 2 * kv_heads) * config.head_dim, hidden),
            qk_norm=self._empty(heads + kv_heads, config.head_dim),
            output=self._empty(hidden, heads * config.head_dim),
            mlp_norm=self._empty(hidden),
            gate_up=self._empty(2 * config.intermediate_size, hidden),
            down=self._empty(hidden, config.intermediate_size),
        )

    def _fuse(self, layer: FusedLayer, tensors: Mapping[str, torch.Tensor], prefix: str) -> None:
        def named(name: str) -> torch.Tensor:
            return tensors[f"{prefix}{name}.weight"]

        heads, inner = self._config.num_attention_heads, self._config.intermediate_size
        queries = heads * self._config.head_dim
        keys = self._config.num_key_value_heads * self._config.head_dim
        layer.qkv[:queries] = named("self_attn.q_proj")
        layer.qkv[queries : queries + keys] = named("self_attn.k_proj")
        layer.qkv[queries + keys :] = named("self_attn.v_proj")
        layer.qk_norm[:heads] = named("self_attn.q_norm") * self._config.head_dim**-0.5
        layer.qk_norm[heads:] = named("self_attn.k_norm")
        layer.gate_up[:inner] = named("mlp.gate_proj")
        layer.gate_up[inner:] = named("mlp.up_proj")
        layer.input_norm.copy_(named("input_layernorm"))
        layer.output.copy_(named("self_attn.o_proj"))
        layer.mlp_norm.copy_(named("post_attention_layernorm"))
        layer.down.copy_(named("mlp.down_proj"))

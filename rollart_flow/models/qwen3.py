"""Qwen3 in plain torch: the architecture of every policy that this library creates.

Parameter names and arithmetic are those of Hugging Face's `Qwen3ForCausalLM`, or of
`Qwen3MoeForCausalLM` if layers are mixtures of experts, so that one folder of weights loads here,
in transformers, in vLLM and in Megatron. Invariant, checked by a test: hidden states, logits and
gradients equal those of transformers.

This module is used for training. Generation uses `rollart_flow.models.cached`, which computes the
same function token by token over a KV cache. Shapes: B batch, T time, E hidden, H heads, D head
dim.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rollart_flow.errors import SettingsError
from rollart_flow.models.architectures import DENSE, MIXTURE
from rollart_flow.models.feed_forward import MLP, Experts, MixtureOfExperts
from rollart_flow.models.language_model import LanguageModel, ModelShape
from rollart_flow.models.packing import Packing, causal_attention
from rollart_flow.models.rotary import full_tables, rotate

_MARKERS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of a Qwen3 model, under the field names of Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Inner width of dense layers."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    """Longest sequence, in tokens."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    tie_word_embeddings: bool = True
    """Whether the embedding is also the output projection; then there is no `lm_head.weight`."""
    initializer_range: float = 0.02
    """Standard deviation of fresh weights."""
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    experts: Experts | None = None
    """Mixture-of-experts settings; None if all layers are dense."""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise SettingsError(f"model: {name} must be at least 1, not {getattr(self, name)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise SettingsError(
                f"model: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise SettingsError(f"model: head_dim must be even, not {self.head_dim}")

    @property
    def mixes(self) -> bool:
        """Whether layers are mixtures of experts."""
        return self.experts is not None

    def pictures(self) -> None:
        """Return None: the model takes no images."""

    def build(self) -> Qwen3:
        """Build the model; its weights are yet to be loaded."""
        return Qwen3(self)

    def files(self, dtype: torch.dtype) -> dict[str, str]:
        """Return config.json and generation_config.json, as name to text."""
        ids = {name: getattr(self, name) for name in _MARKERS}
        model = {
            **self.as_json(),
            "architectures": [DENSE if self.experts is None else MIXTURE],
            "model_type": "qwen3" if self.experts is None else "qwen3_moe",
            "hidden_act": "silu",
            "attention_bias": False,
            "use_sliding_window": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "dtype": str(dtype).removeprefix("torch."),
        }
        return {
            "config.json": json.dumps(model, indent=2, sort_keys=True),
            "generation_config.json": json.dumps(ids, indent=2, sort_keys=True),
        }

    def as_json(self) -> dict[str, Any]:
        """Return Hugging Face's fields by name; fields of experts are included only if there are
        any.
        """
        found = asdict(self)
        experts = found.pop("experts")
        if experts is not None:
            found |= {**experts, "mlp_only_layers": [*experts["mlp_only_layers"]]}
        return found


def own_shape(config: ModelShape, who: str) -> ModelConfig:
    """Return the shape if it is that of a Qwen3; SettingsError if `who` computes nothing else."""
    if isinstance(config, ModelConfig):
        return config
    raise SettingsError(f"the {who} computes {DENSE} and {MIXTURE} alone; take another one")


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize `x`; the result has its shape and dtype."""
        if x.is_cpu and x.dtype == self.weight.dtype == torch.float32:  # fewer calls, equal bits
            return functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention with normalized queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
        packing: Packing | None, wanted: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Map `x` [B, T, E] with `cos` and `sin` [T, D] to [B, T, E].

        Of a packed row, `x` is [N, E], `cos` and `sin` are [N, 1, D], and the result is [N, E], or
        [A, E] at the places `wanted`.
        """
        heads = (*x.shape[:-1], -1, self.head_dim)
        queries = self.q_norm(self.q_proj(x).view(heads))
        keys = self.k_norm(self.k_proj(x).view(heads))
        values = self.v_proj(x).view(heads)
        if packing is not None:
            mixed = packing.attend(rotate(queries, cos, sin), rotate(keys, cos, sin), values)
        else:
            queries, keys, values = (side.transpose(1, 2) for side in (queries, keys, values))
            mixed = causal_attention(rotate(queries, cos, sin), rotate(keys, cos, sin), values)
            mixed = mixed.transpose(1, 2).flatten(2)
        joined: torch.Tensor = self.o_proj(_at(mixed, wanted))
        return joined


class Layer(nn.Module):
    """One transformer layer with pre-normalization."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp: nn.Module = (
            MixtureOfExperts(config.hidden_size, config.experts)
            if config.experts is not None and config.experts.mixes(index)
            else MLP(config.hidden_size, config.intermediate_size)
        )
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
        packing: Packing | None, wanted: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """Map the hidden states; arguments and shapes are those of `Attention.forward`."""
        mixed = self.self_attn(self.input_layernorm(x), cos, sin, packing, wanted)
        x = _at(x, wanted) + mixed
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Backbone(nn.Module):
    """Embedding, layers and final norm, which Hugging Face names `model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Qwen3(LanguageModel):
    """A Qwen3 language model. `state_dict()` has exactly the names of its safetensors file."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self._config = config
        self.model = Backbone(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def config(self) -> ModelConfig:
        return self._config

    def blocks(self) -> Sequence[nn.Module]:
        return list(self.model.layers)

    def initialize(self, seed: int) -> None:
        """Set fresh weights as a function of the seed alone: matrices normal, norms one."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim == 1:
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, self._config.initializer_range, generator=generator)

    def forward(
        self,
        token_ids: torch.Tensor,
        wanted: torch.Tensor | None = None,
        packing: Packing | None = None,
    ) -> torch.Tensor:
        hidden: torch.Tensor = self.model.embed_tokens(token_ids)
        length = token_ids.shape[1] if packing is None else packing.longest
        head_dim, theta = self._config.head_dim, self._config.rope_theta
        cos, sin = full_tables(head_dim, theta, length, hidden.dtype, hidden.device)
        if packing is not None:
            hidden = hidden.squeeze(0)
            cos, sin = (side[packing.positions][:, None] for side in (cos, sin))
        # The last layer of a packed row computes what is wanted of it alone.
        ends = [None] * (len(self.model.layers) - 1) + [None if packing is None else wanted]
        for layer, end in zip(self.model.layers, ends, strict=True):
            hidden = layer(hidden, cos, sin, packing, end)
        normed: torch.Tensor = self.model.norm(hidden)
        return (
            normed if wanted is None or packing is not None else _at(normed.flatten(0, 1), wanted)
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._config.tie_word_embeddings:
            return functional.linear(hidden, self.model.embed_tokens.weight)
        projected: torch.Tensor = self.lm_head(hidden)
        return projected


def _at(x: torch.Tensor, wanted: torch.Tensor | None) -> torch.Tensor:
    return x if wanted is None else x.index_select(0, wanted)

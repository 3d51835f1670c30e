"""transformers' own Qwen3, which shares no code with ours."""

from collections.abc import Mapping
from typing import Any

import torch

from rollart_flow.models.qwen3 import ModelConfig

_SHAPE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
    "tie_word_embeddings",
)  # fmt: skip


def reference_qwen3(config: ModelConfig, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The model of a config with these weights, float32; all of them must have a place."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    make: Any = Qwen3ForCausalLM  # untyped
    shape = {name: getattr(config, name) for name in _SHAPE}
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    model = make(Qwen3Config(**shape, rope_parameters=rope))
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if config.tie_word_embeddings else set())
    model.tie_weights()
    return model

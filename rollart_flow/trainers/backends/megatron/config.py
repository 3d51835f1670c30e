"""The shape of a Qwen3, dense or a mixture of experts, as Megatron-core's config and layer spec.

The invariant: a model with this config computes the function of `models.qwen3` in float32, except
for the order of sums: there is no dropout and no fusion that rounds differently.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.backends.megatron.attention import TorchAttention
from rollart_flow.trainers.backends.megatron.capabilities import Capabilities
from rollart_flow.trainers.backends.megatron.core import (
    MoELayer,
    TransformerConfig,
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from rollart_flow.trainers.backends.megatron.experts import TorchRouter, expert_settings
from rollart_flow.trainers.layout import Layout


def padded_vocabulary(config: ModelConfig, layout: Layout) -> int:
    """Return the number of rows of the split embedding: equally many in every rank, and at most
    `layout.tensor - 1` more than the vocabulary."""
    return -(-config.vocab_size // layout.tensor) * layout.tensor


def transformer_config(config: ModelConfig, layout: Layout, machine: Capabilities) -> Any:
    """Return Megatron's `TransformerConfig` of a model and its layout.

    Raises:
        SettingsError: see `expert_settings`.
    """
    layers, experts = config.num_hidden_layers, config.experts
    return TransformerConfig(
        num_layers=layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_query_groups=config.num_key_value_heads,
        kv_channels=config.head_dim,
        ffn_hidden_size=config.intermediate_size,
        layernorm_epsilon=config.rms_norm_eps,
        normalization="RMSNorm",
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        calculate_per_token_loss=True,  # losses are divided by the whole batch's tokens already
        sequence_parallel=layout.sequence,
        use_cpu_initialization=not machine.cuda,
        perform_initialization=False,  # every weight is given
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        deterministic_mode=machine.cuda,
        cuda_graph_scope=[],
        **({} if experts is None else expert_settings(experts, layers, layout)),
    )


def layer_spec(config: ModelConfig, made: Any, machine: Capabilities, stage: int) -> Any:
    """Return the modules of the layers: those of Transformer Engine on a GPU, else Megatron's own.

    Torch's attention replaces either's.
    """
    engine = machine.cuda and machine.transformer_engine
    if config.experts is not None:
        found = get_gpt_decoder_block_spec(made, engine, normalization="RMSNorm", pp_rank=stage)
        layers = found.layer_specs
    elif engine:
        found = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=True)
        layers = [found]
    else:
        found = get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm")
        layers = [found]
    for layer in layers:
        layer.submodules.self_attention.submodules.core_attention = TorchAttention
        if not engine:
            _stand_in(layer.submodules, config)
    return found


def _stand_in(layer: Any, config: ModelConfig) -> None:
    """Replace the modules of a layer that do not compute without Transformer Engine."""
    if layer.mlp.module is MoELayer:
        layer.mlp.submodules.router = TorchRouter
    else:
        layer.mlp.params["ffn_hidden_size"] = config.intermediate_size

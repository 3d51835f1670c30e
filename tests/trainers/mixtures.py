"""A small Qwen3-MoE for the tests of trainers and engines, and transformers' own of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rollart_flow.models.feed_forward import Experts
from rollart_flow.models.folder import save_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.models.tokenizer import tiny_tokenizer_files
from tests.trainers.cases import CONFIG

EXPERTS = Experts(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True
)
MIXED = replace(CONFIG, experts=EXPERTS)
"""Every layer is a mixture."""
SERVED = replace(MIXED, vocab_size=105, head_dim=32)
"""The same with a tokenizer's vocabulary, of a width of heads that vLLM has, and of one of experts
that it pads on CPUs."""
LATER = replace(CONFIG, experts=replace(EXPERTS, mlp_only_layers=(0,), norm_topk_prob=False))
"""The first layer is none, and what a token's experts weigh does not add up to one."""


def mixed_weights(config: ModelConfig = MIXED, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of version 0, large enough that logits and routes differ."""
    model = Qwen3(config)
    model.initialize(seed)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def write_mixture(folder: Path, config: ModelConfig = MIXED) -> None:
    """A Hugging Face folder of it, with a tokenizer."""
    files = tiny_tokenizer_files(Policy().words, config.max_position_embeddings)
    save_folder(folder, config, mixed_weights(config), files)


def of_transformers(folder: Path) -> Any:
    """Transformers' model in a folder, float32."""
    found: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return found

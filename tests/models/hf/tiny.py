"""Tiny models of several architectures with random weights, as transformers saves them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rollart_flow.models.policy import Policy
from rollart_flow.models.tokenizer import tiny_tokenizer_files

VOCABULARY = 105
CONTEXT = 96
_MIXED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 7},
    "gemma2": {"sliding_window": 7, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {"sliding_window": 7},
    "qwen3_moe": _MIXED,
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 7},
    "gpt2": {"n_positions": CONTEXT, "n_inner": 48},
}
"""Fields of the architectures that are tested beside those of every model."""


def write_model(kind: str, folder: Path, seed: int = 0) -> None:
    """Save a random model with the tokenizer of a tiny policy, in float32."""
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": CONTEXT, "initializer_range": 0.2, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 1,
    }  # fmt: skip
    if kind == "gpt2":
        for name in ("intermediate_size", "num_key_value_heads", "head_dim"):
            del fields[name]
    of: Any = AutoConfig
    config = of.for_model(kind, **{**fields, **ARCHITECTURES[kind]})
    torch.manual_seed(seed)
    make: Any = AutoModelForCausalLM
    make.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for name, text in tiny_tokenizer_files(Policy.tiny().words, CONTEXT).items():
        (folder / name).write_text(text)


def plain_model(folder: Path) -> Any:
    """The model of a folder as transformers computes it, attention written out."""
    make: Any = AutoModelForCausalLM
    return make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

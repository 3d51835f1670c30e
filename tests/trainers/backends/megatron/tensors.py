"""Weights of a model, and what of them a rank of Megatron-core holds."""

from collections.abc import Mapping

import torch

from rollart_flow.models.qwen3 import ModelConfig, Qwen3
from rollart_flow.trainers.backends.megatron.mapping import entries, local_rows


def weights_of(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Random weights under Hugging Face names, norms included."""
    model = Qwen3(config)
    model.initialize(1)
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.state_dict().items()
    }


def of_rank(
    config: ModelConfig, names: list[str], whole: Mapping[str, torch.Tensor], rank: int, ranks: int
) -> dict[str, torch.Tensor]:
    """Megatron's tensors of one rank."""
    found = {}
    for name, entry in entries(config, names, rank, ranks).items():
        parts = []
        for hf in entry.names:
            tensor = whole[hf]
            if entry.dim is not None:
                mine = local_rows(tensor.shape[entry.dim], rank, ranks)
                tensor = tensor.narrow(entry.dim, mine.start, len(mine))
            parts.append(tensor)
        found[name] = entry.joined(parts)
    return found

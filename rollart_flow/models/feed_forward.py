"""Feed-forward blocks of a Qwen3: one for all tokens, or a mixture of experts as in Qwen3-MoE.

The invariant: parameter names and arithmetic are those of Hugging Face's `Qwen3MoeForCausalLM` as
its weights are stored, expert by expert. Every expert computes, if only for no token, so that each
parameter has a gradient in every process. Shapes: E hidden, N tokens, X experts, K of them chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from rollart_flow.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Experts:
    """Which layers are mixtures, and of what, under the field names of `config.json`."""

    num_experts: int
    num_experts_per_tok: int
    """Those that compute a token."""
    moe_intermediate_size: int
    """Width between the matrices of one expert."""
    norm_topk_prob: bool = False
    """Whether the weights of those that compute a token add up to one."""
    decoder_sparse_step: int = 1
    """Every so many layers, the last one is a mixture."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers that are none in any case."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mlp_only_layers", tuple(self.mlp_only_layers))  # a list in JSON
        for name in (
            "num_experts",
            "num_experts_per_tok",
            "moe_intermediate_size",
            "decoder_sparse_step",
        ):
            if getattr(self, name) < 1:
                raise SettingsError(f"model: {name} must be at least 1, not {getattr(self, name)}")
        if self.num_experts_per_tok > self.num_experts:
            raise SettingsError(
                f"model: num_experts_per_tok ({self.num_experts_per_tok}) must be at most "
                f"num_experts ({self.num_experts})"
            )

    def mixes(self, layer: int) -> bool:
        """Whether a layer, counted from 0, is a mixture."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


class MLP(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] to [..., E]."""
        mixed: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class MixtureOfExperts(nn.Module):
    """As many blocks as there are experts; a router chooses those that compute a token."""

    def __init__(self, hidden: int, experts: Experts) -> None:
        super().__init__()
        self._chosen = experts.num_experts_per_tok
        self._normalized = experts.norm_topk_prob
        self.gate = nn.Linear(hidden, experts.num_experts, bias=False)
        self.experts = nn.ModuleList(
            MLP(hidden, experts.moe_intermediate_size) for _ in range(experts.num_experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] to [..., E]; the router's weights are computed in float32."""
        flat = x.reshape(-1, x.shape[-1])
        shares = functional.softmax(self.gate(flat), dim=-1, dtype=torch.float32)
        weights_nk, chosen_nk = shares.topk(self._chosen, dim=-1)
        if self._normalized:
            weights_nk = weights_nk / weights_nk.sum(-1, keepdim=True)
        weights_nk = weights_nk.to(x.dtype)
        mixed = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            tokens, place = (chosen_nk == index).nonzero(as_tuple=True)
            done = expert(flat[tokens]) * weights_nk[tokens, place, None]
            mixed = mixed.index_add(0, tokens, done)
        return mixed.view_as(x)

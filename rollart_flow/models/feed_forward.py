"""Feed-forward blocks of Qwen3: a dense block, or a mixture of experts as in Qwen3-MoE.

Invariant: parameter names and arithmetic are those of Hugging Face's `Qwen3MoeForCausalLM` as its
weights are stored, expert by expert. Every expert computes, even for zero tokens, so that each
parameter has a gradient in every process. Shapes: E hidden, N tokens, X experts, K experts chosen
for each token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from rollart_flow.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture-of-experts settings, under the field names of `config.json`."""

    num_experts: int
    num_experts_per_tok: int
    """Number of experts that compute each token."""
    moe_intermediate_size: int
    """Inner width of one expert."""
    norm_topk_prob: bool = False
    """Whether the weights of the experts chosen for a token are normalized to sum to one."""
    decoder_sparse_step: int = 1
    """Interval of mixture layers: the last layer of each interval is a mixture."""
    mlp_only_layers: tuple[int, ...] = ()
    """Layers that are dense in any case."""

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
        """Return whether a layer, counted from 0, is a mixture."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


class MLP(nn.Module):
    """Gated feed-forward block."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., E] to [..., E]."""
        mixed: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class MixtureOfExperts(nn.Module):
    """A block with several experts; a router chooses the experts that compute each token."""

    def __init__(self, hidden: int, experts: Experts) -> None:
        super().__init__()
        self._chosen = experts.num_experts_per_tok
        self._normalized = experts.norm_topk_prob
        self.gate = nn.Linear(hidden, experts.num_experts, bias=False)
        self.experts = nn.ModuleList(
            MLP(hidden, experts.moe_intermediate_size) for _ in range(experts.num_experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [..., E] to [..., E]; the router's weights are computed in float32."""
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

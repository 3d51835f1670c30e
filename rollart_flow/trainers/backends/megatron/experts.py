"""Mixtures of experts in Megatron's modules, if every rank that splits a layer has all tokens.

Megatron's dispatchers expect ranks with different tokens, as under sequence parallel. Without it no
token is sent to an expert: each rank has a part of every expert's matrices, computes all tokens
with it, and the outputs are summed over these ranks, as for any split matrix. The invariant:
routing, experts and the order of their sums are Megatron's own.

Source: Megatron-core 0.16.1, `transformer.moe`; run on gloo ranks, never on a GPU.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from rollart_flow.errors import SettingsError
from rollart_flow.models.feed_forward import Experts
from rollart_flow.trainers.backends.megatron.core import (
    MoEAllGatherTokenDispatcher,
    MoELayer,
    TopKRouter,
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from rollart_flow.trainers.backends.megatron.groups import Groups
from rollart_flow.trainers.layout import Layout


def expert_settings(experts: Experts, layers: int, layout: Layout) -> dict[str, Any]:
    """Return the fields of Megatron's `TransformerConfig` for a mixture.

    A softmax over the chosen logits is that of all of them, divided by the sum of the chosen. The
    loads of experts are not balanced: the only loss is that of the algorithm, as in
    `models.feed_forward`.

    Raises:
        SettingsError: the router would have no gradient.
    """
    if experts.norm_topk_prob and experts.num_experts_per_tok == 1:
        raise SettingsError(
            "the megatron trainer does not train a model with norm_topk_prob and "
            "num_experts_per_tok=1: its router has no gradient; choose another model"
        )
    return {
        "num_moe_experts": experts.num_experts,
        "moe_ffn_hidden_size": experts.moe_intermediate_size,
        "moe_layer_freq": [int(experts.mixes(layer)) for layer in range(layers)],
        "moe_router_topk": experts.num_experts_per_tok,
        "moe_router_score_function": "softmax",
        "moe_router_pre_softmax": not experts.norm_topk_prob,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall" if layout.sequence else "allgather",
    }


class TorchRouter(TopKRouter):  # type: ignore[misc]
    """A router that computes its logits with torch; Megatron's own needs a GPU and Transformer
    Engine."""

    def gating(self, input: torch.Tensor) -> torch.Tensor:
        """Map [T, B, E] to logits [T, B, experts], float32."""
        return functional.linear(input.float(), self.weight.float())


class Everywhere(MoEAllGatherTokenDispatcher):  # type: ignore[misc]
    """A dispatcher for ranks that have all tokens; it sends none."""

    def __init__(self, layer: Any, groups: Groups) -> None:
        """Split the experts of a `MoELayer` over `groups.tensor`."""
        super().__init__(
            layer.num_local_experts, layer.local_expert_indices, layer.config, groups.collection()
        )
        self._splitting: dist.ProcessGroup = groups.tensor

    def token_dispatch(
        self, hidden_states: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same tokens; their gradients are summed over the ranks."""
        # Side by side: Megatron loses the sum of a gradient that is not contiguous, as that of
        # `probs` by itself.
        both = copy_to_tensor_model_parallel_region(
            torch.cat([hidden_states, probs], -1), group=self._splitting
        )
        states, weights = both.split([hidden_states.shape[-1], probs.shape[-1]], -1)
        return states, weights

    def token_combine(self, hidden_states: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = reduce_from_tensor_model_parallel_region(
            hidden_states, group=self._splitting
        )
        return summed


def keep_tokens(model: torch.nn.Module, groups: Groups) -> None:
    """Let every mixture of a model compute all tokens in its rank."""
    for layer in model.modules():
        if isinstance(layer, MoELayer):
            layer.token_dispatcher = Everywhere(layer, groups)
            # Megatron reads this group for a warning only.
            layer.attn_tp_group = groups.alone

"""The part of the policy that one rank holds, in Megatron's modules.

The invariant: hidden states and logits are those of `models.qwen3.Qwen3`, whole and equal in all
ranks that split the layers; each of these computes the same loss.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from rollart_flow.models.packing import Packing
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.backends.megatron.attention import CpuRotary
from rollart_flow.trainers.backends.megatron.capabilities import Capabilities
from rollart_flow.trainers.backends.megatron.config import (
    layer_spec,
    padded_vocabulary,
    transformer_config,
)
from rollart_flow.trainers.backends.megatron.core import (
    GPTModel,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from rollart_flow.trainers.backends.megatron.experts import keep_tokens
from rollart_flow.trainers.backends.megatron.groups import Groups

INSIDE = "module."
"""Prefix of the names of Megatron's own parameters in a `MegatronModel`."""


class MegatronModel(torch.nn.Module):
    """A `GPTModel` with the interface of `models.qwen3.Qwen3`, without initial weights."""

    packs = True

    def __init__(self, config: ModelConfig, groups: Groups, machine: Capabilities) -> None:
        super().__init__()
        self.config = config
        self._groups = groups
        # Megatron's functions look up attributes of the model under this name.
        made = transformer_config(config, groups.layout, machine)
        self.module = GPTModel(
            made,
            layer_spec(config, made, machine, groups.stage),
            padded_vocabulary(config, groups.layout),
            config.max_position_embeddings,
            pre_process=groups.first,
            post_process=groups.last,
            share_embeddings_and_output_weights=config.tie_word_embeddings,
            position_embedding_type="rope",
            rotary_base=config.rope_theta,
            pg_collection=groups.collection(),
        )
        if not groups.layout.sequence:
            keep_tokens(self.module, groups)
        if not machine.cuda:
            self.module.rotary_pos_emb = CpuRotary(
                config.head_dim,
                rotary_percent=1.0,
                rotary_base=config.rope_theta,
                use_cpu_initialization=True,
                cp_group=self.module.pg_collection.cp,
            )

    def forward(
        self,
        token_ids: torch.Tensor,
        wanted: torch.Tensor | None = None,
        packing: Packing | None = None,
    ) -> torch.Tensor:
        """Return the hidden states after the final norm, as `Qwen3.forward`.

        An earlier stage returns the input of the next one, in the shape of `between`.
        """
        time = token_ids.shape[1]
        if self._groups.layout.sequence:
            # Every rank needs equally many positions; padding on the right changes no result.
            token_ids = functional.pad(token_ids, (0, -time % self._groups.layout.tensor))
        hidden = self.module.decoder(
            hidden_states=self.module.embedding(token_ids, None) if self._groups.first else None,
            attention_mask=packing,  # all layers pass it on to `TorchAttention`
            rotary_pos_emb=self._rotary(token_ids.shape[1], packing),
        )
        if not self._groups.last:
            sent: torch.Tensor = hidden
            return sent
        if self._groups.layout.sequence:
            hidden = gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=False, group=self._groups.tensor
            )
        batched: torch.Tensor = hidden.transpose(0, 1)[:, :time]
        return batched if wanted is None else batched.flatten(0, 1).index_select(0, wanted)

    def _rotary(self, positions: int, packing: Packing | None) -> torch.Tensor:
        """Return the angles of a row's positions, [T, 1, 1, D]."""
        angles: torch.Tensor = self.module.rotary_pos_emb(
            positions if packing is None else packing.longest
        )
        if packing is None:
            return angles
        return angles[functional.pad(packing.positions, (0, positions - len(packing.positions)))]

    def between(self, token_ids: torch.Tensor) -> tuple[int, int, int]:
        """Return the shape of the tensor between two stages for int64 [B, T]: positions, B, E."""
        batch, time = token_ids.shape
        parts = self._groups.layout.tensor if self._groups.layout.sequence else 1
        return -(-time // parts), batch, self.config.hidden_size

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [A, E] to [A, vocab_size]; every rank computes a part and gathers all."""
        tied = self.config.tie_word_embeddings
        weight = (
            self.module.shared_embedding_or_output_weight()
            if tied
            else self.module.output_layer.weight
        )
        taken = copy_to_tensor_model_parallel_region(hidden, group=self._groups.tensor)
        every: torch.Tensor = _Gathered.apply(  # type: ignore[no-untyped-call]
            functional.linear(taken, weight), self._groups
        )
        return every[:, : self.config.vocab_size]


class LayerChunk(torch.nn.Module):
    """A model with Megatron's config, as Megatron's schedules need it."""

    def __init__(self, model: MegatronModel) -> None:
        super().__init__()
        self.module = model
        self.config = model.module.config

    def forward(self, *inputs: Any) -> torch.Tensor:
        """Return the hidden states of `MegatronModel.forward`."""
        states: torch.Tensor = self.module(*inputs)
        return states


class _Gathered(torch.autograd.Function):
    """Gathers the columns of all ranks that split the layers; Megatron's own needs GPUs."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, groups: Groups) -> torch.Tensor:
        """Map [A, columns] to [A, columns x ranks]."""
        ctx.groups = groups
        parts = [torch.empty_like(own) for _ in range(groups.layout.tensor)]
        dist.all_gather(parts, own.contiguous(), group=groups.tensor)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient of this rank's columns; all ranks computed the same whole one."""
        (gradient,) = gradients
        return gradient.chunk(ctx.groups.layout.tensor, -1)[ctx.groups.tensor_rank], None

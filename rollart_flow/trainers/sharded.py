"""What a training step changes, spread over ranks: torch's `fully_shard` (FSDP2) of the policy.

Each rank holds its part of every parameter, gradient and optimizer tensor. A layer is gathered
while it computes; gradients are summed, not averaged, since losses are already normalized by the
whole batch. The invariant: outside of a pass every parameter is sharded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.learned import Learned
from rollart_flow.trainers.optimizer import AdamW
from rollart_flow.trainers.ranks import Ranks


class Sharded(Learned):
    """Model, head and optimizer of all ranks, of which this process holds a part."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: AdamW,
        ranks: Ranks,
    ) -> None:
        """Args: `tensors` are the initial weights, whole and the same in every rank.

        Raises:
            WeightsError: the tensors do not fit the shape.
        """
        self._ranks = ranks
        super().__init__(config, tensors, algorithm, settings)

    def settle(self) -> None:
        """Give back the weights that a pass without a gradient leaves gathered."""
        for module in self._shards():
            module.reshard()

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gathered on the CPU; every rank has to call this for the same tensors."""
        return {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
            for name, tensor in tensors.items()
        }

    def _arrange(self) -> None:
        mesh = self._ranks.mesh
        self.model.to(self._ranks.device)
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        if self.critic is not None:
            fully_shard(self.critic.to(self._ranks.device), mesh=mesh)
        for module in self._shards():
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
            module.set_gradient_divide_factor(1.0)

    def _fitting(self, tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, DTensor) or not isinstance(like, DTensor) or tensor.ndim == 0:
            return tensor
        there = tensor.to(self._ranks.device)
        # Every rank has read the whole tensor and takes its part without asking another.
        return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)

    def _shards(self) -> list[FSDPModule]:
        roots = [self.model] if self.critic is None else [self.model, self.critic]
        return [m for root in roots for m in root.modules() if isinstance(m, FSDPModule)]

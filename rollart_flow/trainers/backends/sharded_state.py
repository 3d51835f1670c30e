"""State that a training step changes, sharded over ranks as DTensors.

The invariant: every exported tensor is either whole or describes which part it is, so that any
other number of ranks can read it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.optimizer import AdamW
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.step.train_state import TrainState


class ShardedState(TrainState):
    """Model, head and optimizer of all ranks, of which this process holds a part."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: AdamW,
        ranks: Ranks,
    ) -> None:
        """Shard the initial weights `tensors`, which are whole and the same in every rank.

        Raises:
            WeightsError: the tensors do not fit the shape.
        """
        self._ranks = ranks
        self.shapes = {name: tensor.shape for name, tensor in tensors.items()}
        """Shapes of all whole tensors of the policy, including those held by other ranks only."""
        super().__init__(config, tensors, algorithm, settings, ranks.device)

    def whole(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gather tensors on the CPU; every rank must call this for the same tensors."""
        return {
            name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu()
            for name, tensor in tensors.items()
        }

    def _laid_out(self, tensor: torch.Tensor, like: DTensor) -> DTensor:
        """Lay out a checkpoint tensor, whole or a part, as another tensor."""
        if isinstance(tensor, DTensor):
            return tensor
        whole = tensor.to(self._ranks.device)
        # Every rank has read the whole tensor and takes its part without an exchange.
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)

"""The trainer that shards the policy over ranks by torch's `fully_shard` (FSDP2).

The invariant: that of `DistributedTrainer`; every rank computes rows of its own.

Source: ROLLART section 5.1 (ActorTrain); torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.backends.distributed_trainer import DistributedTrainer
from rollart_flow.trainers.backends.fsdp_state import FsdpState
from rollart_flow.trainers.ranks import Ranks, by_itself
from rollart_flow.trainers.settings import TrainerSettings


class Fsdp2Trainer(DistributedTrainer):
    """One rank of the trainer."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: TrainerSettings | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        """Start at version 0.

        Args:
            config: shape of the model.
            tensors: initial weights in Hugging Face names, whole and the same in every rank.
            algorithm: the loss.
            settings: how a batch is cut, the optimizer, threads.
            ranks: the ranks of the trainer; by default this process alone.

        Raises:
            WeightsError: the tensors do not fit the shape.
        """
        chosen, group = settings or TrainerSettings(backend="fsdp2"), ranks or by_itself()
        state = FsdpState(config, tensors, algorithm, chosen.optimizer, group)
        super().__init__(state, algorithm, chosen, group)

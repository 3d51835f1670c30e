"""The trainer that splits the policy's layers over ranks with Megatron-core.

The invariant: that of `DistributedTrainer`; ranks that split a layer, and the stages of a pipeline,
compute the same rows.

Source: ROLLART section 5.1 (ActorTrain); Megatron-LM (1909.08053) section 3, tensor parallel;
(2104.04473) section 2.2, pipeline parallel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.backends.distributed_trainer import DistributedTrainer
from rollart_flow.trainers.backends.megatron.capabilities import capabilities, check_installed
from rollart_flow.trainers.layout import Layout
from rollart_flow.trainers.ranks import Ranks, by_itself
from rollart_flow.trainers.settings import TrainerSettings


class MegatronTrainer(DistributedTrainer):
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
            settings: how a batch is cut, how the ranks share the model, the optimizer, threads.
            ranks: the ranks of the trainer; by default this process alone, which then has the whole
                model whatever `settings.ranks` is.

        Raises:
            SettingsError: the model does not divide over the ranks, or what is asked for does not
                work here.
            WeightsError: the tensors do not fit the shape.
            MissingExtraError: Megatron-core is not installed.
        """
        check_installed()
        from rollart_flow.trainers.backends.megatron.distributed import Distributed
        from rollart_flow.trainers.backends.megatron.groups import make_groups
        from rollart_flow.trainers.backends.megatron.state import MegatronState

        chosen, every = settings or TrainerSettings(backend="megatron"), ranks or by_itself()
        layout = chosen.layout if every.count > 1 else Layout()
        there = capabilities(cuda=every.device.type == "cuda")
        there.check(layout)
        layout.check_shape(
            key_value_heads=config.num_key_value_heads,
            intermediate=config.intermediate_size,
            layers=config.num_hidden_layers,
            expert=None if config.experts is None else config.experts.moe_intermediate_size,
        )
        groups = make_groups(layout, every)
        group = groups.with_replicas(every)
        way = Distributed if there.stack else MegatronState
        state = way(config, tensors, algorithm, chosen.optimizer, group, groups, there)
        super().__init__(state, algorithm, chosen, group)

"""The trainer that lives in this process: any `Algorithm` on the Qwen3 model, on a CPU or a GPU.

The invariant: a step is that of `CoreTrainer`, computed by this process alone.

Tried: on CPUs, in float32 and bfloat16; see `models.device`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.device import computing_device
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.checkpoint.checkpoint import read_checkpoint, write_checkpoint
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import TrainerSettings
from rollart_flow.trainers.step.core_trainer import CoreTrainer
from rollart_flow.trainers.step.train_state import TrainState


class EmbeddedTrainer(CoreTrainer):
    """Trains a Qwen3 model in this process. Not for use from two threads."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: TrainerSettings | None = None,
    ) -> None:
        """Start at version 0.

        Args:
            config: shape of the model.
            tensors: initial weights in Hugging Face names, copied and trained in float32; also
                the reference policy where the algorithm needs one.
            algorithm: the loss.
            settings: how a batch is cut, the optimizer, threads, device and dtype.

        Raises:
            SettingsError: it is to compute on a GPU, and this process sees none.
            WeightsError: the tensors do not fit the shape.
        """
        chosen = settings or TrainerSettings()
        alone = Ranks(device=computing_device(chosen.device))
        state = TrainState(config, tensors, algorithm, chosen.optimizer, alone.device)
        super().__init__(state, algorithm, chosen, alone)

    def save(self, folder: Path) -> None:
        """Write a checkpoint, which replaces an older one in the folder.

        Raises:
            TrainerError: it cannot be written; an older one is as it was.
        """
        write_checkpoint(Path(folder), self.snapshot())

    def load(self, folder: Path) -> None:
        self._restore(read_checkpoint(Path(folder)), Path(folder))

"""The trainer that computes the steps of `CoreTrainer` in one process, on a CPU or a GPU.

It was tested on CPUs, in float32 and bfloat16; see `models.device`.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.device import computing_device
from rollart_flow.models.language_model import ModelShape
from rollart_flow.trainers.checkpoint.checkpoint import read_checkpoint, write_checkpoint
from rollart_flow.trainers.ranks import Ranks
from rollart_flow.trainers.settings import RankSettings
from rollart_flow.trainers.step.adapted_state import AdaptedState
from rollart_flow.trainers.step.core_trainer import CoreTrainer
from rollart_flow.trainers.step.train_state import InitialState, TrainState


class EmbeddedTrainer(CoreTrainer):
    """Trains a model in this process; not safe for concurrent use."""

    def __init__(
        self,
        config: ModelShape,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings | None = None,
    ) -> None:
        """Start at version 0.

        Args:
            tensors: initial weights in Hugging Face names, copied and trained in float32; also
                the reference policy if the algorithm needs one.

        Raises:
            SettingsError: the device is a GPU, and this process sees none.
            WeightsError: the tensors do not fit the shape.
        """
        chosen = settings or RankSettings()
        alone = Ranks(device=computing_device(chosen.device))
        initial = InitialState.of(config, tensors, algorithm, chosen)
        make = TrainState if chosen.lora is None else AdaptedState
        super().__init__(make(initial, alone.device), algorithm, chosen, alone)

    def save(self, folder: Path) -> None:
        write_checkpoint(Path(folder), self.snapshot())

    def load(self, folder: Path) -> None:
        self._restore(read_checkpoint(Path(folder)), Path(folder))

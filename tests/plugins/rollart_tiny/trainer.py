"""A trainer: the embedded one under another name."""

from collections.abc import Mapping

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.backends.embedded import EmbeddedTrainer
from rollart_flow.trainers.settings import RankSettings
from rollart_tiny import used


class TinyTrainer(EmbeddedTrainer):
    """The embedded trainer."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        algorithm: Algorithm,
        settings: RankSettings,
    ) -> None:
        used("trainer")
        super().__init__(config, tensors, algorithm, settings)

"""A model whose passes are computed in another dtype than its weights are kept in.

Weights, gradients, the optimizer and whatever is published stay float32; matrix products and
attention of a pass are bfloat16, as torch's autocast chooses them, and norms, softmax and losses
float32. The invariant: what leaves the model is float32.

Source: torch's documentation of `torch.autocast`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.trainers.step.running import PolicyModel


class Autocast:
    """A `PolicyModel` around another one, with the same parameters."""

    def __init__(self, model: PolicyModel, dtype: torch.dtype, device: torch.device) -> None:
        """Args: `dtype` of matrix products on `device`, where the model is."""
        self._model = model
        self._dtype = dtype
        self._device = device.type

    @property
    def config(self) -> ModelConfig:
        """Shape of the model."""
        return self._model.config

    def __call__(self, token_ids: torch.Tensor, /) -> torch.Tensor:
        """Hidden states, float32 [B, T, E]."""
        # Its cache of cast weights ends with the pass, before an update changes them.
        with torch.autocast(self._device, self._dtype):
            return self._model(token_ids).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] to float32 [A, vocab_size]."""
        with torch.autocast(self._device, self._dtype):
            return self._model.logits(hidden).float()

    def named_parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """Parameters of the wrapped model."""
        return self._model.named_parameters()


def computed_in(dtype: str, model: PolicyModel, device: torch.device) -> PolicyModel:
    """The model itself for float32, the dtype of its weights; otherwise an `Autocast` of it."""
    return model if dtype == "float32" else Autocast(model, getattr(torch, dtype), device)

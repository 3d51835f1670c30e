"""Passes of micro-batches through a model: forward, a function of hidden states, and backward.

The function (`Pass.visit`) computes the loss; a `Runner` decides the order in which layers compute.
The invariant: every pass is visited once, in the given order, in each process that holds the last
layer of its rows, and in no other process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from rollart_flow.models.language_model import ModelShape
from rollart_flow.models.packing import Packing
from rollart_flow.trainers.batch.micro_batch import MicroBatch


class PolicyModel(Protocol):
    """Interface of models in trainers, see `LanguageModel`; layers may lie in other ranks."""

    @property
    def config(self) -> ModelShape:
        """Shape of the model."""
        ...

    @property
    def packs(self) -> bool:
        """Whether the model computes packed rows; otherwise rows are padded."""
        ...

    def __call__(
        self,
        token_ids: torch.Tensor,
        wanted: torch.Tensor | None = None,
        packing: Packing | None = None,
        /,
    ) -> torch.Tensor:
        """Hidden states at the places `wanted`, see `LanguageModel.forward`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] to [A, vocab_size]."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """Parameters that this process trains, under the model's own names."""
        ...


class Autocast:
    """A `PolicyModel` around another one, with the same parameters, computed in another dtype.

    Matrix products and attention of a pass use the dtype, as torch's autocast chooses them; norms,
    softmax, losses, and all tensors that leave the model are float32. So are weights, gradients and
    the optimizer.
    """

    def __init__(self, model: PolicyModel, dtype: torch.dtype, device: torch.device) -> None:
        """Compute matrix products in `dtype` on `device`, where the model is."""
        self._model = model
        self._dtype = dtype
        self._device = device.type

    @property
    def config(self) -> ModelShape:
        """Shape of the model."""
        return self._model.config

    @property
    def packs(self) -> bool:
        """Whether the wrapped model computes packed rows."""
        return self._model.packs

    def __call__(
        self,
        token_ids: torch.Tensor,
        wanted: torch.Tensor | None = None,
        packing: Packing | None = None,
        /,
        **features: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states in float32."""
        # Its cache of cast weights ends with the pass, before an update changes them.
        with torch.autocast(self._device, self._dtype):
            return self._model(token_ids, wanted, packing, **features).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[A, E] to float32 [A, vocab_size]."""
        with torch.autocast(self._device, self._dtype):
            return self._model.logits(hidden).float()

    def named_parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """Parameters of the wrapped model."""
        return self._model.named_parameters()


def computed_in(dtype: str, model: PolicyModel, device: torch.device) -> PolicyModel:
    """Return the model itself for float32, the dtype of its weights, otherwise an `Autocast`."""
    return model if dtype == "float32" else Autocast(model, getattr(torch, dtype), device)


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch on its way through the model."""

    micro: MicroBatch
    visit: Callable[[torch.Tensor], torch.Tensor | None]
    """Function of the hidden states [A, E] after the final norm at `micro.predictors`; it returns
    the loss of the backward pass, or None if no gradient is computed."""


class Runner(Protocol):
    """Runs micro-batches through a model."""

    def __call__(self, passes: Iterator[Pass], count: int, *, gradient: bool) -> None:
        """Run all passes.

        Args:
            passes: passes of this process, built one by one as needed.
            count: number of passes.
            gradient: whether every visit returns a loss, whose gradient is added to that of the
                parameters; otherwise no visit returns one.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneByOne:
    """Runs a model whose layers are all in this process."""

    model: PolicyModel

    def __call__(self, passes: Iterator[Pass], count: int, *, gradient: bool) -> None:
        for each in passes:
            with torch.set_grad_enabled(gradient):
                loss = each.visit(self.model(*each.micro.inputs, **each.micro.features))
            if loss is not None:
                loss.backward()  # type: ignore[no-untyped-call]

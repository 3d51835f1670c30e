"""The base of all models that trainers compute: packed rows in, hidden states and logits out.

A model's own parameters may be laid out otherwise than the tensors of its Hugging Face folder, such
as experts that a module stacks and a folder stores one by one. The invariant: all that leaves a
trainer has the folder's names and layout, and `join` is the inverse of `split`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from rollart_flow.models.packing import Packing
from rollart_flow.models.pictures import PictureProcessor


class ModelShape(Protocol):
    """The shape of a model: what its `config.json` says."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Longest sequence, in tokens."""
        ...

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def num_key_value_heads(self) -> int:
        """Heads for keys and values of each layer."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        ...

    @property
    def mixes(self) -> bool:
        """Whether layers are mixtures of experts."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Return the fields that two models of the same shape have in common."""
        ...

    def files(self, dtype: torch.dtype) -> dict[str, str]:
        """Return config.json and generation_config.json, as name to text."""
        ...

    def pictures(self) -> PictureProcessor | None:
        """Return the model's image processor; None if it takes no images."""
        ...

    def build(self) -> LanguageModel:
        """Build the model with weights that are yet to be loaded, on torch's current device."""
        ...


class LanguageModel(nn.Module, ABC):
    """A causal language model in this process."""

    packs: bool = True
    """Whether the model computes packed rows; otherwise rows are padded."""

    @property
    @abstractmethod
    def config(self) -> ModelShape:
        """Shape of the model."""

    @abstractmethod
    def forward(
        self,
        token_ids: torch.Tensor,
        wanted: torch.Tensor | None = None,
        packing: Packing | None = None,
    ) -> torch.Tensor:
        """Return the hidden states after the final norm.

        Attention is causal and positions count from 0, so padding on the right does not change
        earlier positions.

        Args:
            token_ids: int64 [B, T], T at most `max_position_embeddings`; packed chains have B = 1.
            wanted: int64 [A], places in the flattened [B * T]; all by default.
            packing: the chains of a packed row; None if each row is one chain.

        Returns:
            [A, E], or [B, T, E] without `wanted`, in the dtype of the weights.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map [A, E] to [A, vocab_size]; select the needed positions before this call."""

    @abstractmethod
    def blocks(self) -> Sequence[nn.Module]:
        """Return the layers, each of which is sharded and recomputed as one."""

    def names(self, parameter: str) -> tuple[str, ...]:
        """Return the names of the tensors that a folder has for a parameter."""
        return (parameter,)

    def split(self, parameter: str, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Split a tensor with a parameter's layout into the tensors of `names`."""
        return (tensor,)

    def join(self, parameter: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join the tensors of `names` in a parameter's layout."""
        return parts[0]

    def constants(self) -> dict[str, torch.Tensor]:
        """Return the tensors of a folder that are no parameters and are never trained."""
        return {}

    def stored(self) -> dict[str, torch.Tensor]:
        """Return all tensors as a folder has them, detached."""
        found = {
            name: part
            for own, parameter in self.named_parameters()
            for name, part in zip(self.names(own), self.split(own, parameter.detach()), strict=True)
        }
        return found | self.constants()

    def load_stored(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over tensors that a folder has; they have passed `folder.check_tensors`."""
        with torch.no_grad():
            for own, parameter in self.named_parameters():
                parameter.copy_(self.join(own, [tensors[name] for name in self.names(own)]))
            for name, tensor in self.constants().items():
                tensor.copy_(tensors[name])

    def compute_everything(self) -> None:
        """Use all parameters in every pass from now on, as ranks that share them must."""

    def recompute_layers(self) -> None:
        """Keep only the input of each layer for the backward pass, which computes it again."""
        from torch.utils.checkpoint import checkpoint

        for block in self.blocks():
            whole = block.forward

            def again(*args: Any, whole: Any = whole, **kwargs: Any) -> Any:
                return checkpoint(
                    whole, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
                )

            block.forward = again

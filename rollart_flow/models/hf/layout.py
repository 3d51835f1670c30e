"""Names and layout of a model's weights in its folder, as transformers saves them.

transformers may compute with tensors that a folder stores otherwise: the experts of a layer are one
tensor in the module and one for each expert in the folder. The invariant: names and layout are
those that `save_pretrained` writes, which vLLM and other readers expect.

Source: transformers 5.19, `core_model_loading.revert_weight_conversion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion

from rollart_flow.errors import SettingsError
from rollart_flow.models.sharded import is_sharded


class StoredLayout:
    """The tensors of a folder for each parameter of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Read names and shapes of a model, which is not kept.

        Raises:
            SettingsError: several parameters share a tensor of the folder.
        """
        every: Any = get_model_conversion_mapping(model, add_legacy=False)
        self._model = _Skeleton(
            [each for each in every if not isinstance(each, PrefixChange)], model
        )
        parameters = dict(model.named_parameters())
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._parts: dict[str, tuple[str, ...]] = {}
        """Names of the tensors of the parameters that are laid out otherwise."""
        self._renamed: dict[str, str] = {}
        for name, parameter in parameters.items():
            whole = torch.empty_like(parameter, device="meta", requires_grad=False)
            found = self._reverted(name, whole)
            if len(found) == 1 and next(iter(found.values())) is whole:
                self._renamed[name] = next(iter(found))
            else:
                self._parts[name] = tuple(found)
        used = [*self._renamed.values(), *(name for of in self._parts.values() for name in of)]
        if len(set(used)) < len(used):
            raise SettingsError(
                f"model_type {model.config.model_type!r} stores several parameters in one tensor, "
                "which is not supported; take another model"
            )

    def names(self, parameter: str) -> tuple[str, ...]:
        """Return the names of the tensors that a folder has for a parameter."""
        return self._parts.get(parameter) or (self._renamed.get(parameter, parameter),)

    def split(self, parameter: str, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Split a tensor with a parameter's layout into those of `names`."""
        if parameter not in self._parts:
            return (tensor,)
        whole = tensor.full_tensor() if is_sharded(tensor) else tensor
        found = self._reverted(parameter, whole)
        return [found[name] for name in self._parts[parameter]]

    def join(self, parameter: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join the tensors of `names` in a parameter's layout."""
        if parameter not in self._parts:
            return parts[0]
        shape = self._shapes[parameter]
        # Places of a parameter's numbers travel the same way as the numbers.
        places = self.split(parameter, torch.arange(shape.numel()).view(shape))
        joined = torch.empty(shape, dtype=parts[0].dtype, device=parts[0].device)
        for place, part in zip(places, parts, strict=True):
            joined.view(-1)[place.flatten().to(part.device)] = part.flatten()
        return joined

    def constants(self, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        """Return the persistent buffers under their names in a folder."""
        buffers = {name for name, _ in model.named_buffers()}
        return {
            next(iter(self._reverted(name, tensor))): tensor
            for name, tensor in model.state_dict().items()
            if name in buffers
        }

    def _reverted(self, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        skeleton: Any = self._model
        if not skeleton._weight_conversions:
            return {name: tensor}
        found: dict[str, torch.Tensor] = revert_weight_conversion(skeleton, {name: tensor})
        return found


class _Skeleton:
    """The attributes of a model that transformers reads while it converts weights."""

    def __init__(self, conversions: list[Any], model: PreTrainedModel) -> None:
        self._weight_conversions = conversions
        self.config = model.config
        self.get_parameter = model.get_parameter

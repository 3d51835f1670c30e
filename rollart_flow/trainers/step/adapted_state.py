"""Training of a LoRA adapter: the weights are frozen, and only low-rank matrices are trained.

PEFT lays the matrices beside the linear layers of the model. The invariant: what is published are
whole weights with the adapter merged, so that every engine serves them and a replay reads them; the
adapter itself and its optimizer are in checkpoints, and only they change.

Source: LoRA (2106.09685) section 4.1; PEFT 0.21, `inject_adapter_in_model`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rollart_flow.errors import MissingExtraError, SettingsError, TrainerError
from rollart_flow.models.language_model import LanguageModel, ModelShape
from rollart_flow.trainers.checkpoint.checkpoint import Checkpoint
from rollart_flow.trainers.settings import LoraSettings
from rollart_flow.trainers.step.running import PolicyModel
from rollart_flow.trainers.step.train_state import InitialState, TrainState

ADAPTER = "adapter"
"""Kind of the tensors of a checkpoint's state that are parameters of the adapter."""
_BASE, _DOWN, _UP = ".base_layer", ".lora_A.default.weight", ".lora_B.default.weight"


class AdaptedState(TrainState):
    """A frozen model with an adapter, which alone is trained."""

    def __init__(
        self, initial: InitialState, device: torch.device, lora: LoraSettings, seed: int
    ) -> None:
        """Lay a fresh adapter over the initial weights.

        Raises:
            WeightsError: the tensors do not fit the shape.
            SettingsError: no linear layer has a name of `lora.targets`.
            MissingExtraError: PEFT is not installed.
        """
        self._lora, self._seed = lora, seed
        super().__init__(initial, device)
        self._trained = {
            name: parameter for name, parameter in self._trained.items() if parameter.requires_grad
        }
        self.optimizer = self._optimizer(
            1.0 if initial.algorithm.critic is None else initial.algorithm.critic.lr_scale
        )

    def policy(self) -> dict[str, torch.Tensor]:
        """Weights of the policy, with the adapter merged."""
        model = self._model()
        found: dict[str, torch.Tensor] = {}
        for own, _ in model.named_parameters():
            if own in self._trained:
                continue
            name = own.replace(_BASE, "")
            found.update(zip(model.names(name), model.split(name, self._whole(own)), strict=True))
        return found | model.constants()

    def state(self) -> dict[str, torch.Tensor]:
        values = {f"{name}/{ADAPTER}": p.detach() for name, p in self._trained.items()}
        return super().state() | values

    def check(self, found: Checkpoint, folder: Path) -> None:
        super().check(found, folder)
        for name, parameter in self._trained.items():
            stored = found.state.get(f"{name}/{ADAPTER}")
            if stored is None or stored.shape != parameter.shape:
                raise TrainerError(f"checkpoint {folder} has another LoRA adapter, or none")

    def _restore_policy(self, found: Checkpoint) -> None:
        for name, parameter in self._trained.items():
            parameter.copy_(found.state[f"{name}/{ADAPTER}"])

    def _policy(self, shape: ModelShape, whole: Mapping[str, torch.Tensor]) -> PolicyModel:
        with self._device:
            model = self._built(shape, whole).requires_grad_(False)
            _add_adapter(model, self._lora, self._seed)
        return model

    def _model(self) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        return self.model

    def _whole(self, own: str) -> torch.Tensor:
        """Return a frozen parameter, with its part of the adapter if it has one."""
        weight = self._model().get_parameter(own).detach()
        layer = own.removesuffix(f"{_BASE}.weight")
        down, up = self._trained.get(layer + _DOWN), self._trained.get(layer + _UP)
        if layer == own or down is None or up is None:
            return weight
        return weight + self._lora.scale * (up.detach() @ down.detach())


def _add_adapter(model: LanguageModel, lora: LoraSettings, seed: int) -> None:
    """Lay a fresh adapter, which is a function of the seed, beside the chosen linear layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError(
            "train.lora_rank needs an extra: pip install 'rollart-flow[hf]'"
        ) from error
    inside = {id(each) for block in model.blocks() for each in block.modules()}
    linear = [
        name
        for name, each in model.named_modules()
        if isinstance(each, torch.nn.Linear) and id(each) in inside
    ]
    chosen = [
        name for name in linear if not lora.targets or name.rpartition(".")[2] in lora.targets
    ]
    if not chosen:
        known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
        raise SettingsError(f"train.lora_targets: no layer has such a name; the model has {known}")
    config: Any = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=chosen)
    inject_adapter_in_model(config, model)
    _draw(model, seed)


def _draw(model: LanguageModel, seed: int) -> None:
    """Draw the matrices that go down as PEFT does, from a generator that no other thread uses."""
    generator: torch.Generator | None = None
    for name, parameter in model.named_parameters():
        if name.endswith(_DOWN):
            generator = generator or torch.Generator(parameter.device).manual_seed(seed)
            torch.nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)

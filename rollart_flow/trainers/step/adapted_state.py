"""Training of a LoRA adapter: the weights are frozen, and only low-rank matrices are trained.

PEFT lays the matrices beside the linear layers of the model. The invariants: the frozen weights are
those of the run's policy folder to the last bit, so that a version is the adapter alone, in PEFT's
names and float32, and names the checksum of its base; the weights with the adapter merged compute
what was trained.

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
from rollart_flow.models.lora import adapter_names
from rollart_flow.trainers.checkpoint.checkpoint import Checkpoint
from rollart_flow.trainers.settings import LoraSettings
from rollart_flow.trainers.step.train_state import InitialState, TrainState
from rollart_flow.weights.fingerprint import fingerprint

ADAPTER = "adapter"
"""Kind of the tensors of a checkpoint's state that are parameters of the adapter, in checkpoints
whose weights are whole."""
_BASE, _DOWN, _UP = ".base_layer", ".lora_A.default.weight", ".lora_B.default.weight"


class AdaptedState(TrainState):
    """A frozen model with an adapter, which alone is trained."""

    def __init__(self, initial: InitialState, *place: Any) -> None:
        """Lay a fresh adapter over the initial weights.

        Args: `place` is that of the state which this class adapts: a device, or ranks.

        Raises:
            WeightsError: the tensors do not fit the shape.
            SettingsError: there is no adapter to train, or no linear layer has a name of
                `lora.targets`.
            MissingExtraError: PEFT is not installed.
        """
        if initial.lora is None:
            raise SettingsError("train.lora_rank: an adapter needs a rank of at least 1")
        self._lora, self._seed = initial.lora, initial.seed
        self._alone = initial.publishes_adapter
        self.base_checksum = fingerprint(initial.tensors) if self._alone else None
        super().__init__(initial, *place)
        self._published = {own: self._published_name(own) for own in self._trained}

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

    def published(self) -> dict[str, torch.Tensor]:
        """The adapter in PEFT's names, or whole weights if those are published."""
        if not self._alone:
            return self.policy()
        return {name: self._trained[own].detach() for own, name in self._published.items()}

    def state(self) -> dict[str, torch.Tensor]:
        if self._alone:  # the checkpoint's weights are the adapter
            return super().state()
        values = {f"{name}/{ADAPTER}": p.detach() for name, p in self._trained.items()}
        return super().state() | values

    def check(self, found: Checkpoint, folder: Path) -> None:
        super().check(found, folder)
        for own, parameter in self._trained.items():
            stored = self._stored_matrix(own, found)
            if stored is None or stored.shape != parameter.shape:
                raise TrainerError(f"checkpoint {folder} has another LoRA adapter, or none")
        if None not in (found.base_checksum, self.base_checksum) and (
            found.base_checksum != self.base_checksum
        ):
            raise TrainerError(
                f"checkpoint {folder} has an adapter that was trained over other weights than the "
                "run's policy; restore the run's folder from a copy"
            )

    def layouts(self) -> dict[str, torch.Tensor]:
        return super().layouts() | self._named(self._trained, lambda parameter: parameter)

    def _restore_policy(self, found: Checkpoint) -> None:
        for own, parameter in self._trained.items():
            stored = self._stored_matrix(own, found)
            assert stored is not None, "it was checked"
            parameter.copy_(self._joined(own, [stored]))

    def _stored_matrix(self, own: str, found: Checkpoint) -> torch.Tensor | None:
        alone = found.weights.get(self._published[own])
        return found.state.get(f"{own}/{ADAPTER}") if alone is None else alone

    def _built(self, shape: ModelShape, whole: Mapping[str, torch.Tensor]) -> LanguageModel:
        model = super()._built(shape, whole).requires_grad_(False)
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

    def _published_name(self, own: str) -> str:
        """Return PEFT's name of a matrix, in which the layer has its name in the model's folder.

        Raises:
            SettingsError: the folder stores the layer in several tensors.
        """
        ending = _DOWN if own.endswith(_DOWN) else _UP
        layer = own.removesuffix(ending)
        names = self._model().names(f"{layer}.weight")
        if len(names) > 1 and self._alone:
            raise SettingsError(
                f"train.lora_targets: the model's folder stores {layer.rpartition('.')[2]!r} in "
                f"{len(names)} tensors, which have no adapter in common; name other layers"
            )
        return adapter_names(names[0].removesuffix(".weight"))[ending == _UP]


def _add_adapter(model: LanguageModel, lora: LoraSettings, seed: int) -> None:
    """Lay a fresh adapter, which is a function of the seed, beside the chosen linear layers."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError(
            "train.lora_rank needs an extra: pip install 'rollart-flow[hf]'"
        ) from error
    config: Any = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=_chosen(model, lora.targets)
    )
    inject_adapter_in_model(config, model)
    _draw(model, seed)


def _chosen(model: LanguageModel, targets: tuple[str, ...]) -> list[str]:
    """Return the linear layers of the decoder that have one of the names, or all of them.

    Raises:
        SettingsError: no layer has one of the names, or there are no linear layers.
    """
    inside = {id(each) for block in model.blocks() for each in block.modules()}
    linear = [
        name
        for name, each in model.named_modules()
        if isinstance(each, torch.nn.Linear) and id(each) in inside
    ]
    known = {name.rpartition(".")[2] for name in linear}
    if not known:
        raise SettingsError(
            "train.lora_rank: the decoder of this model has no linear layers to adapt; take 0, or "
            "another model"
        )
    if unknown := [name for name in targets if name not in known]:
        raise SettingsError(
            f"train.lora_targets: no layer is named {unknown[0]!r}; the model has "
            f"{', '.join(sorted(known))}"
        )
    return [name for name in linear if not targets or name.rpartition(".")[2] in targets]


def _draw(model: LanguageModel, seed: int) -> None:
    """Draw the matrices that go down as PEFT does, from a generator that no other thread uses."""
    generator: torch.Generator | None = None
    for name, parameter in model.named_parameters():
        if name.endswith(_DOWN):
            generator = generator or torch.Generator(parameter.device).manual_seed(seed)
            torch.nn.init.kaiming_uniform_(parameter, a=math.sqrt(5), generator=generator)

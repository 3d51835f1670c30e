"""The reference policy: one frozen version of the run's own policy, or another one, a teacher.

A teacher is read whenever a trainer starts, from the copy that a run keeps of it; checkpoints have
its fingerprint. A reference up to the run's start version is the initial policy. A later one is the
trainer's own weights when it becomes that version; from then on it is part of checkpoints, so that
a resumed run and a replay need no weights that may have been removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from rollart_flow.algorithms.algorithm import Algorithm
from rollart_flow.errors import SettingsError, TrainerError
from rollart_flow.models.device import CPU
from rollart_flow.models.folder import load_pretrained
from rollart_flow.models.language_model import LanguageModel, ModelShape
from rollart_flow.models.policy import Policy
from rollart_flow.store.files import is_remote
from rollart_flow.trainers.checkpoint.checkpoint import Checkpoint
from rollart_flow.weights.fingerprint import fingerprint
from rollart_flow.weights.folder_store import local_path

REFERENCE = "reference"
"""Kind of the tensors of a checkpoint's state that are parameters of the reference policy."""

Weights = Callable[[], Mapping[str, torch.Tensor]]
"""Function that returns whole weights under Hugging Face names; called only if needed."""


class Reference:
    """Reference policy, available from its version on."""

    def __init__(
        self,
        config: ModelShape,
        weights: Weights,
        algorithm: Algorithm,
        device: torch.device = CPU,
    ) -> None:
        """Take the reference, if it is there from the start.

        Args: `weights` returns the initial policy's weights, float32, copied to `device`.

        Raises:
            SettingsError: the folder of the teacher has no model, or one with another vocabulary.
        """
        if algorithm.needs_reference and algorithm.teacher is not None:
            config, weights = _read_teacher(algorithm.teacher, config.vocab_size)
        self._config = config
        self._device = device
        self._wanted = algorithm.reference if algorithm.needs_reference else None
        self.model: LanguageModel | None = None
        self.name: str | None = None
        """Fingerprint of its weights; None before its version is reached."""
        self.reached(0, weights)
        self._initial = self.name
        """Fingerprint of the initial policy if that is the reference, which checkpoints lack."""

    def reached(self, version: int, weights: Weights) -> None:
        """Take over the weights if the trainer has reached the version of the reference."""
        if version == self._wanted:
            self._take(weights())

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors for a checkpoint; none if the reference is the initial policy."""
        if self.model is None or self.name == self._initial:
            return {}
        return {f"{name}/{REFERENCE}": p for name, p in self.model.stored().items()}

    def restore(self, found: Checkpoint, folder: Path) -> None:
        """Restore the reference of a checkpoint.

        Raises:
            TrainerError: the checkpoint was trained towards another reference.
        """
        if self._wanted is None:
            return
        ending = f"/{REFERENCE}"
        stored = {
            name.removesuffix(ending): tensor
            for name, tensor in found.state.items()
            if name.endswith(ending)
        }
        if found.version < self._wanted:
            self.model = self.name = None
        elif stored:
            self._take(stored)
        elif self._wanted == 0:
            if found.reference != self.name:
                raise TrainerError(f"checkpoint {folder} was trained towards another reference")
        elif found.version == self._wanted or found.reference == fingerprint(found.weights):
            self._take(found.weights)  # it is this very version, or a fork starts from it
        else:
            raise TrainerError(f"checkpoint {folder} was trained towards another reference")

    def _take(self, weights: Mapping[str, torch.Tensor]) -> None:
        with self._device:
            model = self._config.build()
        model.load_stored(weights)
        self.model = model.requires_grad_(False)
        self.name = fingerprint(weights)


def load_teacher(folder: str) -> tuple[ModelShape, dict[str, torch.Tensor]]:
    """Return the shape and the weights of a teacher.

    Args:
        folder: its folder, which may be one of a run in S3, or the name of a repository.

    Raises:
        SettingsError: there is no such model.
        StoreError: the folder cannot be read.
    """
    if is_remote(folder):
        return load_pretrained(local_path(folder))
    try:
        place = Policy.from_pretrained(folder).located().path
    except SettingsError as error:
        raise SettingsError(f"teacher: {error.message.removeprefix('policy: ')}") from error
    assert place is not None, "a pretrained policy has one"
    return load_pretrained(place)


def _read_teacher(folder: str, vocabulary: int) -> tuple[ModelShape, Weights]:
    """Return the shape and the weights of a teacher with a vocabulary of the policy's size."""
    config, tensors = load_teacher(folder)
    if config.vocab_size != vocabulary:
        raise SettingsError(
            f"teacher {folder!r} has a vocabulary of {config.vocab_size} tokens and the policy "
            f"one of {vocabulary}; both must have the same tokens"
        )
    return config, lambda: _in_float32(tensors)


def teacher_weights(folder: str) -> dict[str, torch.Tensor]:
    """Return the weights of a teacher as the reference policy, in float32."""
    return _in_float32(load_teacher(folder)[1])


def _in_float32(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in tensors.items()}

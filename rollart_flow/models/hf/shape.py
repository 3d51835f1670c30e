"""The interface of `TransformersConfig` that the models of this folder are built from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rollart_flow.models.language_model import ModelShape

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class TransformersShape(ModelShape, Protocol):
    """The shape of a model that transformers computes."""

    def checked(self) -> PretrainedConfig:
        """Return the config as transformers understands it.

        Raises:
            SettingsError: transformers has no causal model of this type, or refuses a field.
            MissingExtraError: transformers is not installed.
        """
        ...

    @property
    def placeholder(self) -> int | None:
        """Token that stands for a part of an image; None if the model takes no images."""
        ...

"""`TransformersConfig`: the shape of a model that transformers computes, as its `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import MissingExtraError, SettingsError
from rollart_flow.text import one_line

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from rollart_flow.models.hf.model import TransformersModel
    from rollart_flow.models.pictures import PictureProcessor

_APART = frozenset({"dtype", "torch_dtype", "transformers_version", "_name_or_path"})
"""Fields of `config.json` that say nothing of the shape."""
_MIXTURES = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    """The shape of a model, with everything that transformers needs to build it."""

    text: str
    """JSON of `config.json`, keys sorted, without the fields that say nothing of the shape."""
    generation: str = "{}"
    """JSON of `generation_config.json`."""
    processor: str = ""
    """JSON of the image processor's settings; empty for a model that takes no images."""

    @staticmethod
    def parse(
        values: dict[str, Any], generation: str = "{}", processor: str = ""
    ) -> TransformersConfig:
        """Return the config for the fields of a `config.json`.

        Raises:
            SettingsError: transformers has no causal model of this type, or refuses a field.
            MissingExtraError: transformers is not installed.
        """
        kept = {name: value for name, value in values.items() if name not in _APART}
        found = TransformersConfig(json.dumps(kept, sort_keys=True), generation, processor)
        found.checked()
        return found

    def checked(self) -> PretrainedConfig:
        """Return the config as transformers understands it; errors are those of `parse`."""
        try:
            import transformers
            from transformers import CONFIG_MAPPING
            from transformers.models.auto.modeling_auto import (
                MODEL_FOR_CAUSAL_LM_MAPPING,
                MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
            )
        except ImportError as error:
            raise MissingExtraError(
                "a model that is no Qwen3 needs an extra: pip install 'rollart-flow[hf]'"
            ) from error
        values = json.loads(self.text)
        kind = values.pop("model_type", None)
        if "auto_map" in values:
            raise SettingsError(
                "the model brings its own code, which is never run; take one that transformers "
                "implements"
            )
        if kind not in CONFIG_MAPPING:
            raise SettingsError(
                f"transformers {transformers.__version__} does not know model_type {kind!r}; take "
                "another model, or upgrade transformers"
            )
        try:
            made: PretrainedConfig = CONFIG_MAPPING[kind](**values)
        except Exception as error:  # each architecture checks its fields in its own way
            raise SettingsError(
                f"transformers refuses this config of a {kind}: {one_line(error)}"
            ) from error
        sees = self.placeholder is not None and type(made) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        if type(made) not in MODEL_FOR_CAUSAL_LM_MAPPING and not sees:
            raise SettingsError(f"transformers has no causal language model of model_type {kind!r}")
        return made

    @property
    def vocab_size(self) -> int:
        return self._number("vocab_size")

    @property
    def hidden_size(self) -> int:
        return self._number("hidden_size")

    @property
    def max_position_embeddings(self) -> int:
        return self._number("max_position_embeddings")

    @property
    def num_hidden_layers(self) -> int:
        return self._number("num_hidden_layers")

    @property
    def num_key_value_heads(self) -> int:
        return self._number("num_key_value_heads", "num_attention_heads")

    @property
    def head_dim(self) -> int:
        made = self.checked().get_text_config()
        width = getattr(made, "head_dim", None)
        return int(width or self.hidden_size // self._number("num_attention_heads"))

    @property
    def mixes(self) -> bool:
        """Whether layers are mixtures of experts."""
        made = self.checked().get_text_config()
        return any((getattr(made, name, None) or 0) > 1 for name in _MIXTURES)

    def as_json(self) -> dict[str, Any]:
        """Return the fields of `config.json` that say something of the shape."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    def files(self, dtype: torch.dtype) -> dict[str, str]:
        """Return config.json and generation_config.json, as name to text."""
        values = {**self.as_json(), "dtype": str(dtype).removeprefix("torch.")}
        return {
            "config.json": json.dumps(values, indent=2, sort_keys=True),
            "generation_config.json": self.generation,
        }

    @property
    def placeholder(self) -> int | None:
        """Token that stands for a part of an image; None if the model takes no images."""
        found = json.loads(self.text).get("image_token_id")
        return found if isinstance(found, int) else None

    def pictures(self) -> PictureProcessor | None:
        """Return the model's image processor; None if it takes no images.

        Raises:
            SettingsError: the image processor is not supported.
        """
        from rollart_flow.models.pictures import PictureProcessor

        if self.placeholder is None or not self.processor:
            return None
        return PictureProcessor(self.processor, self.placeholder)

    def build(self) -> TransformersModel:
        """Build the model; its weights are yet to be loaded."""
        from rollart_flow.models.hf.model import TransformersModel
        from rollart_flow.models.hf.vision import VisionModel

        return TransformersModel(self) if self.placeholder is None else VisionModel(self)

    def _number(self, *names: str) -> int:
        made = self.checked().get_text_config()
        for name in names:
            if isinstance(value := getattr(made, name, None), int):
                return value
        raise SettingsError(f"config.json of model_type {made.model_type!r} has no {names[0]}")

"""Pictures: how many tokens of a chain an image takes, and what a vision model reads of it.

A chat template writes one placeholder for an image. The chain has as many as the model computes
features for the image, as the processors of transformers expand it. The families that Qwen2-VL
began share one image processor; its version for Pillow needs no other package.

Source: transformers 5.19, `models/qwen2_5_vl/processing_qwen2_5_vl.py` (`replace_image_token`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import MissingExtraError, SettingsError, TemplateRefusedError
from rollart_flow.models.architectures import PROCESSOR_FILES
from rollart_flow.types import Image

if TYPE_CHECKING:
    import torch

PLACEHOLDER = "<|image_pad|>"
"""Token that stands for a part of an image, in the families that are supported."""
_KINDS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
_NO_SETTINGS = ("image_processor_type", "processor_class", "feature_extractor_type")


class PictureProcessor:
    """The image processor of a policy, made from the texts of its folder's files."""

    def __init__(self, text: str, placeholder: int) -> None:
        """Build transformers' processor from the JSON of a preprocessor_config.json.

        Args:
            text: the JSON.
            placeholder: token that stands for a part of an image.

        Raises:
            SettingsError: the text is damaged, or of an image processor that is not supported.
            MissingExtraError: transformers is not installed.
        """
        self.placeholder = placeholder
        self._processor: Any = _image_processor(text)
        self._counted = lru_cache(maxsize=1024)(self._count)

    @staticmethod
    def of(files: Mapping[str, str], id_of: Callable[[str], int | None]) -> PictureProcessor | None:
        """Return the processor of a folder's files; None if its model takes no images.

        Args:
            files: texts of the files by name, as `tokenizer_files` returns them.
            id_of: id of a token of the tokenizer.

        Raises:
            SettingsError, MissingExtraError: the image processor cannot be built.
        """
        found = next((files[name] for name in PROCESSOR_FILES if name in files), None)
        placeholder = id_of(PLACEHOLDER)
        return (
            None if found is None or placeholder is None else PictureProcessor(found, placeholder)
        )

    def tokens(self, image: Image) -> int:
        """Return the number of tokens that an image takes."""
        return self._counted(image.size)

    def features(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """Return the inputs of a vision tower under transformers' names.

        Returns:
            pixel_values float32 [patches of all images, values of a patch], image_grid_thw int64
            [images, 3].
        """
        opened = [image.opened() for image in images]
        found: dict[str, torch.Tensor] = dict(self._processor(images=opened, return_tensors="pt"))
        return found

    def expand(self, token_ids: Sequence[int], images: Sequence[Image]) -> tuple[int, ...]:
        """Return tokens with each image's placeholder repeated for the image.

        Raises:
            TemplateRefusedError: there are not as many placeholders as images.
        """
        if (places := token_ids.count(self.placeholder)) != len(images):
            raise TemplateRefusedError(
                f"the chat template shows {places} images, but the messages have {len(images)}"
            )
        left = iter(images)
        expanded: list[int] = []
        for token in token_ids:
            count = self.tokens(next(left)) if token == self.placeholder else 1
            expanded += [token] * count
        return tuple(expanded)

    def _count(self, size: tuple[int, int]) -> int:
        patches = int(self._processor.get_number_of_image_patches(*size))
        return patches // int(self._processor.merge_size) ** 2


def collapse(token_ids: Sequence[int], placeholder: int) -> list[int]:
    """Return tokens with one placeholder for each image, as `expand` was given them."""
    return [
        token
        for before, token in zip((None, *token_ids), token_ids, strict=False)
        if not token == placeholder == before
    ]


def _image_processor(text: str) -> object:
    try:
        values: Any = json.loads(text)
        values = values.get("image_processor", values)
        kind = values.get("image_processor_type")
    except (ValueError, AttributeError) as error:
        raise SettingsError(f"the model's preprocessor_config.json is damaged: {error}") from error
    if kind not in _KINDS:
        raise SettingsError(
            f"the model's image processor is {kind!r}; supported are those of Qwen2-VL, "
            "Qwen2.5-VL and Qwen3-VL"
        )
    try:
        from transformers import Qwen2VLImageProcessorPil
    except ImportError as error:
        raise MissingExtraError(
            "a model that takes images needs an extra: pip install 'rollart-flow[hf]'"
        ) from error
    said = {name: value for name, value in values.items() if name not in _NO_SETTINGS}
    return Qwen2VLImageProcessorPil(**said)

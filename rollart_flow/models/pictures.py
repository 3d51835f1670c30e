"""Pictures: what stands for an image in a chain, and what a vision tower reads of it.

A chat template writes one placeholder for an image. The chain has in its place what the processors
of transformers write: as many placeholders as the model computes features for the image, and what
its family puts around them (`models.picture_families`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import MissingExtraError, SettingsError, TemplateRefusedError
from rollart_flow.models.architectures import PROCESSOR_FILES
from rollart_flow.models.picture_families import FAMILIES, PictureFamily
from rollart_flow.text import counted
from rollart_flow.types import Image

if TYPE_CHECKING:
    import torch

Encode = Callable[[str], tuple[int, ...]]
"""Returns the tokens of a text whose special tokens are markers."""
_NO_SETTINGS = ("image_processor_type", "processor_class", "feature_extractor_type")
_LENGTH = "image_seq_len"
"""Field of a processor_config.json that the image processor of a family needs too."""
_REMEMBERED, _LARGEST = 512, 1 << 18
"""Most images whose features are remembered, and the size of the largest of these [bytes]."""


class PictureProcessor:
    """The image processor of a policy, made from the texts of its folder's files."""

    def __init__(self, text: str, placeholder: int, encode: Encode | None = None) -> None:
        """Build transformers' processor from the JSON of `processor_text`.

        Args:
            text: the JSON.
            placeholder: token that stands for a part of an image.
            encode: the tokenizer; None for a processor that only reads images.

        Raises:
            SettingsError: the text is damaged, or of an image processor that is not supported.
            MissingExtraError: transformers is not installed.
        """
        self.placeholder = placeholder
        self._family = _family(text)
        self._counted = lru_cache(maxsize=1024)(self._family.marks)
        self._spelled = lru_cache(maxsize=1024)(self._spell)
        self._encode = encode
        self._seen: OrderedDict[str, dict[str, torch.Tensor]] = OrderedDict()

    @staticmethod
    def of(
        files: Mapping[str, str], id_of: Callable[[str], int | None], encode: Encode
    ) -> PictureProcessor | None:
        """Return the processor of a folder's files; None if its model takes no images.

        Args:
            files: texts of the files by name, as `tokenizer_files` returns them.
            id_of: id of a token of the tokenizer.
            encode: the tokenizer.

        Raises:
            SettingsError, MissingExtraError: the image processor cannot be built.
        """
        text = processor_text(files)
        marks = (each.mark for each in FAMILIES if text and _fields(text)[0] in each.kinds)
        placeholder = id_of(next(marks, FAMILIES[0].mark))
        return (
            None if not text or placeholder is None else PictureProcessor(text, placeholder, encode)
        )

    def tokens(self, image: Image) -> int:
        """Return the number of placeholders that an image takes."""
        return self._counted(*image.size)

    def features(self, images: Sequence[Image]) -> dict[str, torch.Tensor]:
        """Return the inputs of a vision tower under transformers' names, as its family says."""
        import torch

        each = [self._features(image) for image in images]
        return {name: torch.cat([f[name] for f in each], self._family.joined) for name in each[0]}

    def expand(self, token_ids: Sequence[int], images: Sequence[Image]) -> tuple[int, ...]:
        """Return tokens with each image's placeholder replaced by what stands for the image.

        Raises:
            TemplateRefusedError: there are not as many placeholders as images.
        """
        if (places := token_ids.count(self.placeholder)) != len(images):
            raise TemplateRefusedError(
                f"the chat template shows {counted(places, 'image')}, but the messages have "
                f"{len(images)}"
            )
        left = iter(images)
        expanded: list[int] = []
        for token in token_ids:
            expanded += self._spelled(*next(left).size) if token == self.placeholder else (token,)
        return tuple(expanded)

    def collapse(self, token_ids: Sequence[int], images: Sequence[Image]) -> list[int]:
        """Return tokens with one placeholder for each image, as `expand` was given them.

        Raises:
            TemplateRefusedError: the tokens do not have what stands for each image, in order.
        """
        found: list[int] = []
        start = 0
        for image in images:
            written = self._spelled(*image.size)
            at = _place(token_ids, written, start)
            if at is None:
                raise TemplateRefusedError(
                    f"the chain has no place for image {image.image_id[:12]} of its images"
                )
            found += [*token_ids[start:at], self.placeholder]
            start = at + len(written)
        return [*found, *token_ids[start:]]

    def _features(self, image: Image) -> dict[str, torch.Tensor]:
        known = self._seen.pop(image.image_id, None)
        found = self._family.features(image.opened()) if known is None else known
        if sum(tensor.nbytes for tensor in found.values()) <= _LARGEST:
            self._seen[image.image_id] = found
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return found

    def _spell(self, height: int, width: int) -> tuple[int, ...]:
        assert self._encode is not None, "this processor was made without a tokenizer"
        return self._encode(self._family.written(height, width))


def processor_text(files: Mapping[str, str]) -> str:
    """Return the JSON of a model's image processor; empty if the model has none.

    Args: `files` are the texts of a folder's files by name.

    Raises:
        SettingsError: a file is damaged.
    """
    texts = [files[name] for name in PROCESSOR_FILES if name in files]
    if len(texts) < 2:
        return "".join(texts)
    image, whole = map(_parsed, texts)
    return json.dumps({_LENGTH: whole[_LENGTH], **image}) if _LENGTH in whole else texts[0]


def _parsed(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"the model's preprocessor_config.json is damaged: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError("the model's preprocessor_config.json is damaged: it is no object")
    return values


def _fields(text: str) -> tuple[object, dict[str, Any]]:
    """Return the name of an image processor, and its settings."""
    values = _parsed(text)
    inner = values.get("image_processor", values)
    said = dict(inner) if isinstance(inner, dict) else {}
    if _LENGTH in values:
        said[_LENGTH] = values[_LENGTH]
    kind = said.get("image_processor_type")
    return kind, {name: value for name, value in said.items() if name not in _NO_SETTINGS}


def _family(text: str) -> PictureFamily:
    kind, settings = _fields(text)
    make = next((each for each in FAMILIES if kind in each.kinds), None)
    if make is None:
        raise SettingsError(
            f"the model's image processor is {kind!r}; supported are those of Qwen2-VL, "
            "Qwen2.5-VL, Qwen3-VL and Idefics3"
        )
    try:
        return make(settings)
    except ImportError as error:
        raise MissingExtraError(
            "a model that takes images needs an extra: pip install 'rollart-flow[hf]'"
        ) from error


def _place(token_ids: Sequence[int], written: Sequence[int], start: int) -> int | None:
    """Return where a run of tokens begins at or after `start`."""
    wanted = tuple(written)
    for at in range(start, len(token_ids) - len(wanted) + 1):
        if token_ids[at] == wanted[0] and tuple(token_ids[at : at + len(wanted)]) == wanted:
            return at
    return None

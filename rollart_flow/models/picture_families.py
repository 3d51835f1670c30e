"""The families of models that take images: what stands for an image in a chain, and their inputs.

The processors are those of transformers for Pillow, which need no other package.

Sources: transformers 5.19, `models/qwen2_5_vl/processing_qwen2_5_vl.py` and
`models/idefics3/processing_idefics3.py` (`replace_image_token`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image as PilImage


class PictureFamily(ABC):
    """An image processor, with the settings of one model."""

    kinds: ClassVar[tuple[str, ...]]
    """Names of the image processors in `image_processor_type`."""
    mark: ClassVar[str]
    """Token that a chat template writes for an image; it stands for a part of it in a chain."""
    joined: ClassVar[int]
    """Dimension in which the features of several images are joined."""

    @abstractmethod
    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Build transformers' processor from the fields of a preprocessor_config.json.

        Raises:
            ImportError: transformers is not installed.
        """

    @abstractmethod
    def marks(self, height: int, width: int) -> int:
        """Return how many features an image of this size has, each of which takes one mark."""

    @abstractmethod
    def written(self, height: int, width: int) -> str:
        """Return the text that stands for an image of this size, marks included."""

    @abstractmethod
    def features(self, image: PilImage) -> dict[str, torch.Tensor]:
        """Return the inputs of the vision tower for one image, under transformers' names."""


class QwenPictures(PictureFamily):
    """Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a mark for each square of the image."""

    kinds = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
    mark = "<|image_pad|>"
    joined = 0

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from transformers import Qwen2VLImageProcessorPil

        self._processor: Any = Qwen2VLImageProcessorPil(**settings)

    def marks(self, height: int, width: int) -> int:
        patches = int(self._processor.get_number_of_image_patches(height, width))
        return patches // int(self._processor.merge_size) ** 2

    def written(self, height: int, width: int) -> str:
        return self.mark * self.marks(height, width)

    def features(self, image: PilImage) -> dict[str, torch.Tensor]:
        """Return pixel_values float32 [patches, values of a patch] and image_grid_thw int64
        [1, 3]."""
        return dict(self._processor(images=[image], return_tensors="pt"))


class IdeficsPictures(PictureFamily):
    """Idefics3 and the SmolVLM models of that architecture: a whole image, after its tiles if the
    processor splits it; as many marks for each."""

    kinds = ("Idefics3ImageProcessor", "Idefics3ImageProcessorFast", "Idefics3ImageProcessorPil")
    mark = "<image>"
    joined = 1
    _around, _whole = "<fake_token_around_image>", "<global-img>"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from transformers import Idefics3ImageProcessorPil

        said = dict(settings)
        self._each = int(said.pop("image_seq_len", 169))  # the default of transformers
        self._processor: Any = Idefics3ImageProcessorPil(**said)

    def marks(self, height: int, width: int) -> int:
        count, _, _ = self._tiles(height, width)
        return count * self._each

    def written(self, height: int, width: int) -> str:
        _, rows, columns = self._tiles(height, width)
        marks = self.mark * self._each
        lines = [
            "".join(f"{self._around}<row_{y + 1}_col_{x + 1}>{marks}" for x in range(columns))
            for y in range(rows)
        ]
        tiles = "".join(f"{line}\n" for line in lines) + "\n" if lines else ""
        return f"{tiles}{self._around}{self._whole}{marks}{self._around}"

    def features(self, image: PilImage) -> dict[str, torch.Tensor]:
        """Return pixel_values float32 [1, tiles, 3, H, W] and pixel_attention_mask int64 [1, tiles,
        H, W]."""
        return dict(self._processor(images=[[image]], return_tensors="pt"))

    def _tiles(self, height: int, width: int) -> tuple[int, int, int]:
        """Return the number of tiles, the whole image among them, and their rows and columns."""
        said = {"return_row_col_info": True}
        count, rows, columns = self._processor.get_number_of_image_patches(height, width, said)
        return max(int(count), 1), int(rows), int(columns)


FAMILIES: tuple[type[PictureFamily], ...] = (QwenPictures, IdeficsPictures)

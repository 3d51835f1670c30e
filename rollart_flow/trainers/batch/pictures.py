"""The images of a batch's rows, and what a vision tower reads of them in a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
import torch

from rollart_flow.errors import BatchError
from rollart_flow.models.pictures import PictureProcessor
from rollart_flow.store.images import images_of_batch
from rollart_flow.trainers.batch.ragged import Array
from rollart_flow.types import Image

_COLUMN = "images"


@dataclass(frozen=True, slots=True)
class BatchPictures:
    """The images of all rows, with the processor of the policy."""

    rows: tuple[tuple[Image, ...], ...]
    """Images of each row, in the order of their placeholders."""
    names: tuple[str, ...]
    processor: PictureProcessor

    def features(
        self, rows: Array, token_ids: torch.Tensor, actions: Sequence[Array]
    ) -> dict[str, torch.Tensor]:
        """Return the inputs of `models.hf.vision.VisionModel` for some rows; none without images.

        Args:
            rows: the rows.
            token_ids: their tokens, padded, int64 [B, T]. Tokens after a row's last action are
                left out, and so are the images among them.
            actions: places of action tokens in each of the rows.

        Raises:
            BatchError: the placeholders of a row are not those of its images.
        """
        places = (token_ids == self.processor.placeholder).numpy()
        shown: list[Image] = []
        for index, row in enumerate(rows.tolist()):
            own = actions[index]
            places[index, own[own < places.shape[1]]] = False
            shown += self._shown(row, int(places[index].sum()))
        if not shown:
            return {}
        kinds = torch.from_numpy(places.astype(np.int64))
        return {**self.processor.features(shown), "mm_token_type_ids": kinds}

    def _shown(self, row: int, places: int) -> Sequence[Image]:
        """Return the first images of a row, which have so many placeholders."""
        images = self.rows[row]
        ends = [0, *accumulate(map(self.processor.tokens, images))]
        if places not in ends:
            raise BatchError(
                f"trajectory {self.names[row]} has {places} placeholders of images, but its images "
                f"take {ends[-1]}"
            )
        return images[: ends.index(places)]


def read_pictures(
    table: pa.Table, names: tuple[str, ...], processor: PictureProcessor | None
) -> BatchPictures | None:
    """Return the images of rows of `trajectories`; None if no row has any.

    Args:
        table: the rows, with the files of their images (`store.images.with_images`).
        names: ids of the rows.
        processor: image processor of the policy; None if its model takes no images.

    Raises:
        BatchError: the model takes no images, or the batch lacks the file of one.
    """
    column = table[_COLUMN] if _COLUMN in table.column_names else None
    if column is None or column.null_count == len(column):
        return None
    if processor is None:
        raise BatchError("the batch has images, but the policy's model takes none")
    found = images_of_batch(table)
    try:
        rows = tuple(tuple(found[name] for name in row or ()) for row in column.to_pylist())
    except KeyError as error:
        raise BatchError(f"the batch lacks the file of image {error}") from error
    return BatchPictures(rows, names, processor)

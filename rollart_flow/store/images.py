"""The images of a run: each is a file of the folder `images`, named by its content.

The invariant: a file is written before the row that names it is sent to the buffer, so that a
committed row never names an image that is not there.
"""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from rollart_flow.errors import EnvironmentFailedError, StoreError
from rollart_flow.store import files
from rollart_flow.store.layout import images_uri
from rollart_flow.types import Image
from rollart_flow.types.images import checked_image_id

_KEY = b"image:"
"""Prefix of the names of images in the metadata of a table that carries their files."""
_REMEMBERED = 1 << 16
"""Names of stored images that a process remembers, so as not to write them again."""


class ImageFolder:
    """Writes images of one run."""

    def __init__(self, run: str) -> None:
        """Create the writer for a run's address; nothing is written yet."""
        self._folder = images_uri(run)
        self._stored: dict[str, None] = {}

    def put(self, images: Iterable[Image]) -> None:
        """Write images that the run does not have; they are durable afterwards.

        Raises:
            StoreError: an image cannot be written.
        """
        for image in images:
            if image.image_id not in self._stored and image.png is not None:
                files.write(_address(self._folder, image.image_id), image.png, exclusive=True)
                self._stored[image.image_id] = None
                if len(self._stored) > _REMEMBERED:
                    del self._stored[next(iter(self._stored))]


def read_image(run: str, image_id: str) -> Image:
    """Return an image of a run with its file.

    Raises:
        StoreError: the name is none of an image, or the run does not have it whole.
    """
    try:
        png = files.read(_address(images_uri(run), checked_image_id(image_id)))
    except ValueError as error:
        raise StoreError(str(error)) from error
    if png is None:
        raise StoreError(f"the run at {run} has no image {image_id}")
    try:
        return Image(image_id, png).checked()
    except EnvironmentFailedError as error:
        raise StoreError(f"image {image_id} of the run at {run} is damaged: {error}") from error


def with_images(run: str, batch: pa.Table) -> pa.Table:
    """Return rows of a batch with the files of their images, each once.

    The image of a row that was drawn from another run is there.

    Raises:
        StoreError: an image is not in its run.
    """
    names = batch["images"] if "images" in batch.column_names else None
    if names is None or names.null_count == len(names):
        return batch
    images: dict[str, Image] = {}
    for source in _sources(batch):
        of_source = pc.equal(pc.fill_null(_source_of(batch), ""), source)
        for name in pc.unique(pc.list_flatten(names.filter(of_source))).to_pylist():
            images[name] = images.get(name) or read_image(source or run, name)
    return carrying(batch, images.values())


def _source_of(batch: pa.Table) -> pa.ChunkedArray:
    """Return the address of the other run that each row was drawn from, null if from none."""
    if "source_run" in batch.column_names:
        return batch["source_run"]
    return pa.chunked_array([pa.nulls(batch.num_rows, pa.string())])


def _sources(batch: pa.Table) -> list[str]:
    return [str(each) for each in pc.unique(pc.fill_null(_source_of(batch), "")).to_pylist()]


def carrying(batch: pa.Table, images: Iterable[Image]) -> pa.Table:
    """Return rows of `trajectories` with the files of images."""
    found = {_KEY + image.image_id.encode(): image.png for image in images}
    return batch.replace_schema_metadata({**(batch.schema.metadata or {}), **found})


def images_of_batch(batch: pa.Table) -> dict[str, Image]:
    """Return the images that `with_images` added to a table, by name."""
    return {
        name: Image(name, png)
        for key, png in (batch.schema.metadata or {}).items()
        if key.startswith(_KEY) and (name := key.removeprefix(_KEY).decode())
    }


def _address(folder: str, image_id: str) -> str:
    return files.join(folder, f"{image_id}.png")

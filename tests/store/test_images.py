"""The images of a run: written once by content, read by name, carried with a batch."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rollart_flow.errors import StoreError
from rollart_flow.store import open_run
from rollart_flow.store.images import ImageFolder, images_of_batch, with_images
from rollart_flow.types import Image
from tests.runs import new_writer

IMAGES = tuple(Image.of(np.full((4, 4, 3), shade, np.uint8)) for shade in (0, 100, 200))


@pytest.fixture
def run(tmp_path: Path) -> str:
    with new_writer(tmp_path) as writer:
        return writer.uri


def test_each_image_is_one_file_named_by_its_content(run: str) -> None:
    folder = ImageFolder(run)

    folder.put(IMAGES)
    folder.put(IMAGES[::-1])
    ImageFolder(run).put(IMAGES[:1])

    names = sorted(path.name for path in Path(run, "images").iterdir())
    assert names == sorted(f"{image.image_id}.png" for image in IMAGES)
    assert open_run(run).image(IMAGES[1].image_id).png == IMAGES[1].png


@pytest.mark.parametrize("name", ["../run.json", "0" * 64, ""])
def test_a_name_without_an_image_is_one_line(run: str, name: str) -> None:
    with pytest.raises(StoreError, match="image"):
        open_run(run).image(name)


def test_a_damaged_file_is_named(run: str) -> None:
    ImageFolder(run).put(IMAGES)
    Path(run, "images", f"{IMAGES[0].image_id}.png").write_bytes(IMAGES[1].png or b"")

    with pytest.raises(StoreError, match="damaged"):
        open_run(run).image(IMAGES[0].image_id)


def test_a_batch_carries_each_image_once(run: str) -> None:
    ImageFolder(run).put(IMAGES)
    first, second, _ = (image.image_id for image in IMAGES)
    names = pa.array([[first, second], None, [first]], pa.list_(pa.string()))

    found = images_of_batch(with_images(run, pa.table({"images": names})))

    assert {name: image.png for name, image in found.items()} == {
        first: IMAGES[0].png, second: IMAGES[1].png,
    }  # fmt: skip


def test_a_batch_without_images_is_left_as_it_is(run: str) -> None:
    for batch in (
        pa.table({"a": [1]}),
        pa.table({"images": pa.array([None], pa.list_(pa.string()))}),
    ):
        assert with_images(run, batch) is batch

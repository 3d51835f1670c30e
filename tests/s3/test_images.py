"""Images of sandboxes in S3: what one node adds, another one pulls."""

from pathlib import Path

import pytest

from rollart_flow.errors import ImageError
from rollart_flow.retries import RetryPolicy
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.store import files


def test_an_image_is_stored_below_a_prefix_and_pulled_from_there(
    remote: str, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("of the image")
    image = ImageCache(tmp_path / "one", store=f"{remote}/images").add(tmp_path / "source")
    digits = image.rpartition(":")[2]
    assert [name for name in files.names(f"{remote}/images") if name.startswith(digits)]
    other = ImageCache(tmp_path / "two", store=f"{remote}/images", retries=RetryPolicy(limit_s=0))
    with other.acquire(image) as lease:
        assert (lease.root / "file").read_text() == "of the image"
    assert other.counters.pulls == {"store": 1}
    with pytest.raises(ImageError, match="neither on this node"):
        other.acquire("sha256:" + "0" * 64)

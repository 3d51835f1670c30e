"""Images that one node of a Ray cluster has and another one pulls."""

from pathlib import Path
from typing import Any

import pytest
import ray

from rollart_flow.errors import ImageError
from rollart_flow.resources.image_peers import RayPeers, share_images
from rollart_flow.retries import RetryPolicy
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.sandbox.images.settings import default_cache, use_cache
from tests.local_ray import ray_nodes

CONTENT = bytes(range(256)) * 40_000


def pull(image: str) -> tuple[bytes, dict[str, Any]]:
    """Pull an image in a process of another node; return its file and what the cache counted."""
    assert share_images() is not None
    with default_cache().acquire(image) as lease:
        return (lease.root / "file").read_bytes(), default_cache().counters.row()


def test_a_node_pulls_what_another_one_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLART_IMAGES", str(tmp_path / "one"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_bytes(CONTENT)
    try:
        with ray_nodes({"num_cpus": 1}, {"num_cpus": 1, "resources": {"second": 1}}):
            server = share_images()
            image = default_cache().add(tmp_path / "source")
            environment = {"env_vars": {"ROLLART_IMAGES": str(tmp_path / "two")}}
            elsewhere = ray.remote(pull).options(
                resources={"second": 1}, runtime_env=environment, num_cpus=0
            )
            content, counted = ray.get(elsewhere.remote(image))
            assert content == CONTENT
            assert counted["pulls"] == {"peer": 1}
            ray.kill(server)
            alone = ImageCache(
                tmp_path / "three", peers=[RayPeers()], retries=RetryPolicy(limit_s=0)
            )
            with pytest.raises(ImageError, match=r"could not be pulled|neither on this node"):
                alone.acquire(image)
    finally:
        use_cache(None)


def test_without_ray_there_are_no_peers() -> None:
    if not ray.is_initialized():
        assert share_images() is None

"""Images of other nodes of a Ray cluster: an actor on each node serves what its cache has.

A process that makes boxes calls `share_images`. The actor lives as long as the process that started
it; a node that is gone is not asked again.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rollart_flow.errors import ImageError
from rollart_flow.resources.nodes import node_id
from rollart_flow.sandbox.images.cache import ImageCache
from rollart_flow.sandbox.images.digest import AboutImage
from rollart_flow.sandbox.images.settings import cache_from, use_cache

_PREFIX = "rollart-images-"
_ANSWER_S = 10.0
"""Longest answer of a node to the question whether it has an image [s]."""
_PIECE_S = 120.0
"""Longest wait for the next piece of an archive [s]."""
_AHEAD = 4
"""Pieces that a node packs before they are taken."""


class ImageServer:
    """The actor of one node.

    Args:
        folder: folder of the node's cache.
    """

    def __init__(self, folder: str) -> None:
        self._cache = ImageCache(Path(folder))

    def about(self, digits: str) -> bytes | None:
        """Return `AboutImage.dump` of an image, None if the node does not have it."""
        about = self._cache.about(digits)
        return None if about is None else about.dump()

    def pieces(self, digits: str) -> Iterator[bytes]:
        """Yield the archive of an image, for `unpack_pieces`.

        Raises:
            ImageError: the node has lost it meanwhile.
        """
        yield from self._cache.pieces(digits)


def share_images() -> Any:
    """Let boxes of this process use images of other nodes, and other nodes those of this one.

    Returns:
        The actor of this node, which ends when its handle does; None without a second node.

    Raises:
        SettingsError: a variable of the cache has a wrong value.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    if sum(node["Alive"] for node in ray.nodes()) < 2:
        return None
    try:
        cache = cache_from(os.environ, peers=[RayPeers()])
    except OSError:  # boxes that need an image will say so
        return None
    use_cache(cache)
    options: dict[str, Any] = {
        "name": _PREFIX + node_id(), "get_if_exists": True, "num_cpus": 0,
        "label_selector": {"ray.io/node-id": node_id()},
    }  # fmt: skip
    return ray.remote(ImageServer).options(**options).remote(str(cache.local.folder))


class RayPeers:
    """The caches of all other nodes that serve images, as one place (`ImagePlace`)."""

    name = "peer"

    def __init__(self) -> None:
        self._having: dict[str, Any] = {}
        """The actor that has an image which is about to be pulled."""

    def about(self, digits: str) -> AboutImage | None:
        """Return the description of an image, from the first node that has it.

        Raises:
            ConnectionError: no node has it, and some did not answer.
        """
        import ray
        from ray.exceptions import RayError

        lost = ""
        for server in _servers():
            try:
                data = ray.get(server.about.remote(digits), timeout=_ANSWER_S)
            except RayError as error:
                lost = str(error)
                continue
            if data is not None:
                self._having[digits] = server
                return AboutImage.load(data)
        if lost:
            raise ConnectionError(lost)
        return None

    def pieces(self, digits: str) -> Iterator[bytes]:
        """Yield the archive of an image that `about` has found.

        Raises:
            ConnectionError: the node is gone, or has lost the image.
        """
        import ray
        from ray.exceptions import RayError

        server = self._having.pop(digits, None)
        if server is None:
            raise ImageError(f"image {digits[:12]}: no node was found that has it")
        method = server.pieces.options(_generator_backpressure_num_objects=_AHEAD)
        try:
            for piece in method.remote(digits):
                yield ray.get(piece, timeout=_PIECE_S)
        except RayError as error:
            raise ConnectionError(str(error)) from error


def _servers() -> Sequence[Any]:
    """Return the actors of other nodes."""
    import ray
    from ray.util import list_named_actors

    own, found = _PREFIX + node_id(), []
    for name in sorted(list_named_actors()):
        if name.startswith(_PREFIX) and name != own:
            try:
                found.append(ray.get_actor(name))
            except ValueError:  # it ended a moment ago
                continue
    return found

"""The image cache of this process, as variables of its environment describe it.

| variable | meaning |
|---|---|
| `ROLLART_IMAGES` | folder of the cache; by default `images` in the user's cache folder |
| `ROLLART_IMAGES_GB` | bound of that folder [GiB]; 20 by default |
| `ROLLART_IMAGES_MEMORY_GB` | bound of a folder below `/dev/shm` for the images used last [GiB] |
| `ROLLART_IMAGES_STORE` | folder or S3 prefix that is asked for what no node has |
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollart_flow.errors import SettingsError
from rollart_flow.sandbox.images.cache import MAX_BYTES, ImageCache
from rollart_flow.sandbox.images.places import ImagePlace

VARIABLES = (
    "ROLLART_IMAGES", "ROLLART_IMAGES_GB", "ROLLART_IMAGES_MEMORY_GB", "ROLLART_IMAGES_STORE",
)  # fmt: skip
"""Names of the variables."""
_used: list[ImageCache] = []
"""The cache of this process, once there is one."""


def default_cache() -> ImageCache:
    """Return the cache that boxes of this process use.

    Raises:
        SettingsError: a variable has a wrong value.
        OSError: the folder cannot be made.
    """
    if not _used:
        _used.append(cache_from(os.environ))
    return _used[0]


def use_cache(cache: ImageCache | None) -> None:
    """Let boxes of this process use a cache, such as one with peers; None means the default."""
    _used[:] = [] if cache is None else [cache]


def cache_from(environ: Mapping[str, str], peers: Sequence[ImagePlace] = ()) -> ImageCache:
    """Return the cache that variables describe.

    Args:
        environ: the variables.
        peers: caches of other nodes.

    Raises:
        SettingsError: a variable has a wrong value.
        OSError: the folder cannot be made.
    """
    memory_bytes = _bytes(environ, "ROLLART_IMAGES_MEMORY_GB", 0)
    memory = Path(f"/dev/shm/rollart-images-{os.geteuid()}") if memory_bytes else None
    folder = environ.get("ROLLART_IMAGES")
    return ImageCache(
        Path(folder) if folder else _user_folder(),
        max_bytes=_bytes(environ, "ROLLART_IMAGES_GB", MAX_BYTES),
        memory=memory,
        memory_bytes=memory_bytes,
        peers=peers,
        store=environ.get("ROLLART_IMAGES_STORE") or None,
    )


def _user_folder() -> Path:
    from rollart_flow.store.cache import cache_folder  # loads what stores need

    return cache_folder("images")


def _bytes(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    try:
        size = int(float(text) * (1 << 30))
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise SettingsError(f"{name}={text!r} is no size in GiB")
    return size

"""The digest of an image: SHA-256 over a canonical listing of its files and its configuration.

The listing names every entry with its kind, mode and content in the order of paths, so that equal
trees have one digest wherever and however they were unpacked. Owners and times are left out: all
files belong to the user of the boxes, and times differ between copies.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rollart_flow.errors import ImageError

PREFIX = "sha256:"
BLOCK_BYTES = 4096
"""Size that an entry counts at least, and a multiple of which each file counts [bytes]."""
_PIECE_BYTES = 1 << 20
_NAMED = re.compile(r"(?:(?P<name>[^@]*)@)?sha256:(?P<hex>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """Settings that an image has for its boxes, beside its files."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of commands; those of a `SandboxSpec` replace them."""
    workdir: str = ""
    """Folder for `SandboxSpec.workdir`; empty if the image names none."""
    host: bool = False
    """Whether `/usr` and Python are those of the host, as in a box without an image."""

    def json(self) -> dict[str, Any]:
        """Return the configuration as JSON data."""
        return {**asdict(self), "env": dict(self.env)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutImage:
    """The description of an image, which is stored beside its files and sent before them."""

    digest: str
    """`sha256:` with 64 hexadecimal digits."""
    size_bytes: int
    """Size on a disk with blocks of `BLOCK_BYTES` [bytes]."""
    entries: int
    """Number of files, folders and links."""
    config: ImageConfig

    def dump(self) -> bytes:
        """Return the description as JSON."""
        parts = {"digest": self.digest, "size_bytes": self.size_bytes, "entries": self.entries}
        return json.dumps({**parts, "config": self.config.json()}).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Return the description that `dump` wrote.

        Raises:
            ImageError: the data is none.
        """
        try:
            parts = json.loads(data)
            config = ImageConfig(**parts.pop("config"))
            about = cls(config=config, **parts)
            hex_digits(about.digest)
            if not (isinstance(about.size_bytes, int) and isinstance(about.entries, int)):
                raise TypeError("its sizes are no integers")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ImageError(f"damaged description of an image: {error}") from error
        return about


def is_digest(image: str) -> bool:
    """Whether `SandboxSpec.image` names an image of the cache rather than a folder."""
    return _NAMED.fullmatch(image) is not None


def hex_digits(image: str) -> str:
    """Return the 64 digits of `sha256:...` or `name@sha256:...`.

    Raises:
        ImageError: the text is neither.
    """
    match = _NAMED.fullmatch(image)
    if match is None:
        raise ImageError(f"{image[:80]!r} is no image; write sha256:... or name@sha256:...")
    return match["hex"]


def describe(root: Path, config: ImageConfig) -> AboutImage:
    """Read a whole tree and return its description.

    Raises:
        OSError: an entry cannot be read.
    """
    listing = hashlib.sha256(json.dumps(config.json(), sort_keys=True).encode())
    size, count = 0, 0
    for path, about in _entries(os.fsencode(root), b""):
        mode = b"%o" % (about.st_mode & 0o777)
        inside = os.path.join(os.fsencode(root), path)
        if stat.S_ISDIR(about.st_mode):
            kind: tuple[bytes, ...] = (b"d", mode)
        elif stat.S_ISLNK(about.st_mode):
            kind = (b"l", os.readlink(inside))
        else:
            kind = (b"f", mode, b"%d" % about.st_size, _content(inside))
            size += -(-about.st_size // BLOCK_BYTES) * BLOCK_BYTES
        listing.update(b"\0".join((*kind, path)) + b"\0\n")
        size, count = size + BLOCK_BYTES, count + 1
    digest = PREFIX + listing.hexdigest()
    return AboutImage(digest=digest, size_bytes=size, entries=count, config=config)


def _entries(root: bytes, folder: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield path and status of every entry below a folder, parents first, sorted by name."""
    with os.scandir(os.path.join(root, folder)) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = os.path.join(folder, entry.name)
        yield path, entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(root, path)


def _content(path: bytes) -> bytes:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.digest()

"""Writes the tree of an image or of a download, whatever an archive says.

Invariants: nothing outside the root is written, read or linked, since every path is followed within
the root, as a process would that has it as its `/`. The tree holds folders, regular files and
symbolic links only, without set-user-id bits, all of one owner, and no more bytes and entries than
its bounds.
"""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.images.digest import BLOCK_BYTES
from rollart_flow.sandbox.links import MOST_LINKS

NOBODY = 65534
"""User and group of the files where this process is root; boxes run as this user then."""
MOST_ENTRIES = 5_000_000
"""Largest number of entries of an image."""
_PIECE_BYTES = 1 << 20


class TreeWriter:
    """Writes one tree.

    Args:
        root: an existing folder, which becomes the `/` of the image.
        max_bytes: bound of the size, counted as `AboutImage.size_bytes` counts it.
        for_boxes: whether boxes run on the tree, whose files are `NOBODY`'s then where this process
            is root. Otherwise they are this user's, who alone may write them.
    """

    def __init__(self, root: Path, max_bytes: int, *, for_boxes: bool = True) -> None:
        self._root = os.fsencode(root)
        self._left_bytes = max_bytes
        self._max_bytes = max_bytes
        self._left_entries = MOST_ENTRIES
        self._owned = for_boxes and os.geteuid() == 0
        self._modes = 0o777 if for_boxes else 0o755
        self._own(self._root)

    def folder(self, path: str, mode: int = 0o755) -> None:
        """Make a folder, or change the mode of the one that is there.

        Raises:
            ImageError: the path leads out, or a bound is reached.
        """
        place = self._place(path)
        if place != self._root and not _is_folder(place):
            self._remove(place)
            self._count(0)
            os.mkdir(place)
            self._own(place)
        os.chmod(place, (mode & self._modes) | 0o700)

    def file(self, path: str, content: BinaryIO, mode: int = 0o644, mtime: float = 0.0) -> None:
        """Write a regular file in place of whatever has its name.

        Raises:
            ImageError: the path leads out, or a bound is reached.
        """
        place = self._new(path)
        self._count(0)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(place, flags, 0o600), "wb", buffering=0) as file:
            size = 0
            while piece := content.read(_PIECE_BYTES):
                grown = _blocks(size + len(piece)) - _blocks(size)
                self._take(grown)
                size += len(piece)
                _write_all(file.fileno(), piece)
            os.fchmod(file.fileno(), (mode & self._modes) | 0o400)
            if self._owned:
                os.fchown(file.fileno(), NOBODY, NOBODY)
            os.utime(file.fileno(), (mtime, mtime))

    def symlink(self, path: str, target: str) -> None:
        """Make a symbolic link; its text may be anything, since only boxes follow it.

        Raises:
            ImageError: the path leads out, or a bound is reached.
        """
        place = self._new(path)
        self._count(0)
        os.symlink(os.fsencode(target), place)
        self._own(place)

    def hard_link(self, path: str, target: str) -> None:
        """Make another name of a file of this tree.

        Raises:
            ImageError: a path leads out, or the tree has no such file.
        """
        source, place = self._place(target), self._place(path)
        try:
            about = os.lstat(source)
        except OSError:
            about = None
        if about is None or stat.S_ISDIR(about.st_mode):
            raise ImageError(f"image: {path!r} links to {target!r}, which is no file of the image")
        if source != place:
            self._remove(place)
            self._count(about.st_size)
            os.link(source, place, follow_symlinks=False)

    def remove(self, path: str) -> None:
        """Remove an entry with all below it; a missing one is no error.

        Raises:
            ImageError: the path leads out.
        """
        self._remove(self._place(path))

    def names(self, path: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder.

        Raises:
            ImageError: the path leads out.
        """
        place = self._place(path, last=True)
        return [os.fsdecode(name) for name in os.listdir(place)] if _is_folder(place) else []

    def _new(self, path: str) -> bytes:
        """Return the free place of a path, after removing what is there."""
        place = self._place(path)
        if place == self._root:
            raise ImageError(f"image: {path!r} would replace the root")
        self._remove(place)
        return place

    def _place(self, path: str, *, last: bool = False) -> bytes:
        """Return where a path lies, following links of the folders above it within the root.

        Folders that are missing are made. A link at the end is followed only if `last` is set.
        """
        parts = path.split("/")
        if ".." in parts or "\0" in path:
            raise ImageError(f"image: the path {path[:200]!r} leads out")
        waiting = [os.fsencode(part) for part in reversed(parts) if part not in ("", ".")]
        place: list[bytes] = []
        links = 0
        while waiting:
            part = waiting.pop()
            if part == b"..":
                del place[-1:]
                continue
            here = b"/".join((self._root, *place, part))
            if (waiting or last) and os.path.islink(here):
                links += 1
                if links > MOST_LINKS:
                    raise ImageError(f"image: the path {path[:200]!r} follows too many links")
                target = os.readlink(here)
                if target.startswith(b"/"):
                    place.clear()
                waiting += [
                    name for name in reversed(target.split(b"/")) if name not in (b"", b".")
                ]
                continue
            if waiting and not _is_folder(here):
                self._make_parent(here, path)
            place.append(part)
        return b"/".join((self._root, *place))

    def _make_parent(self, here: bytes, path: str) -> None:
        if os.path.lexists(here):
            raise ImageError(f"image: the path {path[:200]!r} passes through a file")
        self._count(0)
        os.mkdir(here, 0o755)
        self._own(here)

    def _remove(self, place: bytes) -> None:
        if place == self._root:
            raise ImageError("image: an entry would remove the root")
        if _is_folder(place):
            shutil.rmtree(place)
        else:
            with suppress(FileNotFoundError):
                os.unlink(place)

    def _own(self, place: bytes) -> None:
        if self._owned:
            os.lchown(place, NOBODY, NOBODY)

    def _count(self, size: int) -> None:
        self._left_entries -= 1
        if self._left_entries < 0:
            raise ImageError(f"image: it has more than {MOST_ENTRIES} entries")
        self._take(BLOCK_BYTES + _blocks(size))

    def _take(self, size: int) -> None:
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise ImageError(f"image: it is larger than the {self._max_bytes >> 20} MiB allowed")


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _is_folder(place: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(place).st_mode)
    except FileNotFoundError:
        return False


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]

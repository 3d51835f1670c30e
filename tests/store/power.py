"""A power failure: what was not synced to the disk is empty or gone, and removals have happened.

The disk keeps the order of nothing but what `os.fsync` asks for. A synced file is there under its
name of that moment, as on journaled file systems; under another one, once its folder is synced.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollart_flow.store.blobs import FSYNC_VARIABLE


class Disk:
    """What has reached the disk since this object was made; nothing had before."""

    def __init__(self) -> None:
        self.syncs = 0
        """Number of calls of fsync."""
        self._contents: dict[int, bytes] = {}
        """Synced bytes by inode."""
        self._names: set[tuple[int, str, int]] = set()
        """Synced names: inode of the folder, name, and inode of what has that name."""

    def sync(self, handle: int) -> None:
        """Note that a file or folder is synced."""
        self.syncs += 1
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            self._names |= {(found.st_ino, e.name, e.inode()) for e in os.scandir(path)}
        else:
            self._contents[found.st_ino] = path.read_bytes()
            self._names.add((path.parent.stat().st_ino, path.name, found.st_ino))

    def settle(self, folder: Path) -> None:
        """Take all of a folder to be on the disk, as half a minute later it would be."""
        for path in (folder, *folder.rglob("*")):
            handle = os.open(path, os.O_RDONLY)
            self.sync(handle)
            os.close(handle)

    def cut_power(self, folder: Path) -> None:
        """Leave of a folder what is on the disk."""
        for path in sorted(folder.rglob("*")):
            found = path.stat()
            if path.is_dir():
                continue
            if (path.parent.stat().st_ino, path.name, found.st_ino) not in self._names:
                path.unlink()
            else:
                path.write_bytes(self._contents.get(found.st_ino, b""))

    def lacks_folder(self, folder: Path, below: Path) -> Path | None:
        """The first folder on the way to a folder whose name is not on the disk, if any."""
        for path in (folder, *folder.parents):
            if path == below:
                return None
            if (path.parent.stat().st_ino, path.name, path.stat().st_ino) not in self._names:
                return path
        return None


@contextmanager
def watched_disk() -> Iterator[Disk]:
    """Watch what this process syncs, which it does as it would outside of tests."""
    disk, real = Disk(), os.fsync

    def noting(handle: int) -> None:
        real(handle)
        disk.sync(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(FSYNC_VARIABLE, raising=False)
        patch.setattr(os, "fsync", noting)
        yield disk

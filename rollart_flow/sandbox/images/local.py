"""Images in one folder of this node: in memory, such as below `/dev/shm`, or on a disk.

    trees/HEX/root         the files of an image, complete once HEX has its name
    trees/HEX/about.json   its description; the time of the folder is that of its last use
    work/ID                an image that is being written or removed
    locks/HEX              held shared by each process whose boxes use the image
    locks/ID.write         held by the one thread of the node that writes or removes the image

Invariants: the folder never has more bytes than its bound, except for sources that `add` is still
reading. What a process that died has left in `work` is removed by the next one that needs room.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.images.digest import AboutImage
from rollart_flow.sandbox.images.locks import free, free_and_remove, locked, take

_ABOUT = "about.json"


class LocalImages:
    """The images of one folder, which any number of processes share.

    Args:
        name: label of the folder in counters and messages.
        folder: made if it is missing.
        max_bytes: bound of its size.
        evicted: called for every image that is removed to make room.
    """

    def __init__(
        self, name: str, folder: Path, max_bytes: int, evicted: Callable[[], None]
    ) -> None:
        self.name = name
        self.folder = folder = folder.absolute()
        self.max_bytes = max_bytes
        self._evicted = evicted
        for part in ("trees", "work", "locks"):
            (folder / part).mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(self._space):
            self._sweep()

    def root(self, digits: str) -> Path:
        """Return the folder of an image's files."""
        return self.folder / "trees" / digits / "root"

    def has(self, digits: str) -> bool:
        """Whether the image is here, complete."""
        return (self.folder / "trees" / digits).is_dir()

    def about(self, digits: str) -> AboutImage | None:
        """Return the description of an image, None if it is not here."""
        try:
            data = (self.folder / "trees" / digits / _ABOUT).read_bytes()
        except FileNotFoundError:
            return None
        return AboutImage.load(data)

    def images(self) -> list[str]:
        """Return the digits of all images, least recently used first."""
        times = {}
        for entry in os.scandir(self.folder / "trees"):
            with suppress(FileNotFoundError):
                times[entry.name] = entry.stat().st_mtime_ns
        return sorted(times, key=lambda digits: (times[digits], digits))

    def size(self) -> int:
        """Return the bytes of all images, with those that room was made for."""
        total = 0
        for part in ("trees", "work"):
            for entry in os.scandir(self.folder / part):
                with suppress(FileNotFoundError, ImageError):
                    total += AboutImage.load(Path(entry.path, _ABOUT).read_bytes()).size_bytes
        return total

    def share(self, digits: str) -> int | None:
        """Lock an image against removal; return the lock, None if the image is not here."""
        if not self.has(digits):
            return None
        lock = take(self._use(digits), shared=True)
        assert lock is not None
        if self.has(digits):
            with suppress(FileNotFoundError):
                os.utime(self.folder / "trees" / digits)
            return lock
        free(lock)
        return None

    @contextmanager
    def alone(self, digits: str) -> Iterator[None]:
        """Hold the right to write an image, which one thread of the node has at a time."""
        lock = take(self._right(digits))
        assert lock is not None
        try:
            yield
        finally:
            free_and_remove(lock, self._right(digits))

    @contextmanager
    def work(self, about: AboutImage) -> Iterator[Path]:
        """Yield an empty folder for an image whose right is held, after making room for it.

        Raises:
            ImageError: the image does not fit, since it is too large or all others are in use.
        """
        folder = self.folder / "work" / about.digest.partition(":")[2]
        shutil.rmtree(folder, ignore_errors=True)
        try:
            self._reserve(folder, about)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield an empty folder for an image whose digest is not known yet."""
        name = f"draft-{uuid.uuid4().hex}"
        folder = self.folder / "work" / name
        with self.alone(name):
            try:
                folder.mkdir()
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def keep(self, folder: Path, about: AboutImage) -> None:
        """Give the folder of `work` or `draft`, with the files in `root`, its name.

        The right to write the image is held.

        Raises:
            ImageError: there is no room for a draft.
        """
        if not (folder / _ABOUT).exists():
            self._reserve(folder, about)
        folder.rename(self.folder / "trees" / about.digest.partition(":")[2])

    def evict(self, digits: str) -> bool:
        """Remove an image that nothing uses; False if it is in use."""
        right = take(self._right(digits), wait=False)
        if right is None:
            return False
        use = take(self._use(digits), wait=False)
        if use is not None:
            doomed = self.folder / "work" / digits
            shutil.rmtree(doomed, ignore_errors=True)
            with suppress(FileNotFoundError):
                (self.folder / "trees" / digits).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            free_and_remove(use, self._use(digits))
        free_and_remove(right, self._right(digits))
        return use is not None

    @property
    def _space(self) -> Path:
        return self.folder / "space.lock"

    def _use(self, digits: str) -> Path:
        return self.folder / "locks" / digits

    def _right(self, name: str) -> Path:
        return self.folder / "locks" / f"{name}.write"

    def _reserve(self, folder: Path, about: AboutImage) -> None:
        """Note the size of an image in its folder once there is room for it."""
        with locked(self._space):
            self._sweep()
            surplus = self.size() + about.size_bytes - self.max_bytes
            for digits in self.images() if about.size_bytes <= self.max_bytes else ():
                if surplus <= 0:
                    break
                removed = self.about(digits)
                if removed is not None and self.evict(digits):
                    surplus -= removed.size_bytes
                    self._evicted()
            if surplus > 0:
                raise ImageError(
                    f"the image cache {self.folder} of {self.max_bytes >> 20} MiB has no room for "
                    f"an image of {-(-about.size_bytes >> 20)} MiB; give it more, or close boxes"
                )
            folder.mkdir(exist_ok=True)
            (folder / _ABOUT).write_bytes(about.dump())

    def _sweep(self) -> None:
        """Remove what processes that died have left in `work`."""
        for entry in os.scandir(self.folder / "work"):
            lock = take(self._right(entry.name), wait=False)
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                free_and_remove(lock, self._right(entry.name))

"""Leases of images: an image is not removed while a process holds one."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rollart_flow.sandbox.images.digest import AboutImage
from rollart_flow.sandbox.images.local import LocalImages


class ImageLease:
    """An image in use. Release it once; as a context manager it does so itself."""

    def __init__(self, held: "HeldImage", release: Callable[["HeldImage"], None]) -> None:
        self._held: HeldImage | None = held
        self._release = release
        self.root = held.local.root(held.about.digest.partition(":")[2])
        """Folder of the files, not to be written to."""
        self.about = held.about
        """Digest, size and configuration."""

    def release(self) -> None:
        """End the use. May be called twice."""
        held, self._held = self._held, None
        if held is not None:
            self._release(held)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class HeldImage:
    """The lock of this process on an image, and how many leases share it."""

    def __init__(self, local: LocalImages, about: AboutImage, lock: int) -> None:
        self.local = local
        self.about = about
        self.lock = lock
        self.leases = 1

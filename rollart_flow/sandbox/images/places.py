"""Places beyond this node that have images."""

from collections.abc import Iterator
from typing import Protocol

from rollart_flow.sandbox.images.digest import AboutImage


class ImagePlace(Protocol):
    """Something that may have images. An `ImageCache` is one, for the caches of other nodes."""

    @property
    def name(self) -> str:
        """Label of the place in counters and messages."""

    def about(self, digits: str) -> AboutImage | None:
        """Return the description of an image, None if the place does not have it.

        Raises:
            OSError: the place does not answer.
        """

    def pieces(self, digits: str) -> Iterator[bytes]:
        """Yield the image as `archive.pack` does.

        Raises:
            OSError: the place does not answer, or has lost the image.
        """

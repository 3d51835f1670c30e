"""The pull of one image: place after place, each with retries, verified before it has its name."""

import time
from collections.abc import Iterator, Sequence

from rollart_flow.errors import ImageError, ImagePullError
from rollart_flow.retries import RetryPolicy, retried
from rollart_flow.sandbox.images.archive import unpack_pieces
from rollart_flow.sandbox.images.counters import Counting
from rollart_flow.sandbox.images.digest import PREFIX, AboutImage, describe
from rollart_flow.sandbox.images.local import LocalImages
from rollart_flow.sandbox.images.places import ImagePlace
from rollart_flow.sandbox.images.tree import TreeWriter
from rollart_flow.text import one_line
from rollart_flow.types import Retried


def pull(
    digits: str,
    places: Sequence[ImagePlace],
    local: LocalImages,
    retries: RetryPolicy,
    counting: Counting,
) -> str:
    """Pull an image into a local folder, whose right for it is held; return the place's name.

    Raises:
        ImagePullError: places that may have it failed, and no other has it.
        ImageError: no place has it, or there is no room for it.
    """
    began = time.monotonic()
    failures = []

    def note(repeated: Retried) -> None:
        counting.add("retries", repeated.failures)

    try:
        for place in places:
            what = f"pull of image {digits[:12]} from {place.name}"
            try:
                found = retried(
                    what,
                    lambda place=place: _attempt(digits, place, local, counting),  # type: ignore[misc]
                    ImagePullError,
                    note,
                    retries,
                )
            except ImagePullError as error:
                counting.add("failures")
                failures.append(f"{place.name}: {error.message}")
                continue
            if found:
                counting.pulled(place.name)
                return place.name
    finally:
        counting.time(time.monotonic() - began)
    if failures:
        raise ImagePullError(f"image {PREFIX}{digits} could not be pulled: {'; '.join(failures)}")
    raise ImageError(
        f"image {PREFIX}{digits} is neither on this node nor on a peer or in the store; "
        "add it with ImageCache.add"
    )


def _attempt(digits: str, place: ImagePlace, local: LocalImages, counting: Counting) -> bool:
    """Try to pull from one place; False if it does not have the image."""
    about = _asked(digits, place)
    if about is None:
        return False
    with local.work(about) as work:
        root = work / "root"
        root.mkdir(mode=0o755)
        pieces = _counted(place.pieces(digits), counting)
        try:
            unpack_pieces(pieces, TreeWriter(root, about.size_bytes))
            found = describe(root, about.config).digest
        except (OSError, ImageError) as error:
            raise ImagePullError(one_line(error)) from error
        if found != about.digest:
            raise ImagePullError(f"what it sent has the digest {found}")
        local.keep(work, about)
    return True


def _asked(digits: str, place: ImagePlace) -> AboutImage | None:
    try:
        about = place.about(digits)
    except (OSError, ImageError) as error:
        raise ImagePullError(one_line(error)) from error
    if about is not None and about.digest != PREFIX + digits:
        raise ImagePullError(f"it described {about.digest}")
    return about


def _counted(pieces: Iterator[bytes], counting: Counting) -> Iterator[bytes]:
    for piece in pieces:
        counting.add("pulled_bytes", len(piece))
        yield piece

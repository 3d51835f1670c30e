"""Images that an environment shows, as PNG files with a name that follows from their content.

Equal pixels give equal files and equal names, whatever format they came in. Rows and messages hold
the name; the file is stored once in the run.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from rollart_flow.errors import EnvironmentFailedError, MissingExtraError
from rollart_flow.text import one_line

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

T = TypeVar("T")

MOST_BYTES = 16 << 20
"""Longest file of an image [bytes], as given and as stored."""
MOST_PIXELS = 1 << 24
"""Most pixels of an image, width times height."""
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
_NAMED, _INLINE = "sha256:", "data:image/"
_SIGNATURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


@dataclass(frozen=True, slots=True)
class Image:
    """An image, by its name; build it with `Image.of`. Images of equal pixels are equal."""

    image_id: str
    """SHA-256 of the PNG file, 64 hexadecimal digits."""
    png: bytes | None = field(default=None, repr=False, compare=False)
    """The PNG file: 8 bits, RGB; None for an image that a stored row names."""

    @classmethod
    def of(cls, source: object) -> Image:
        """Return an image from a PNG or JPEG file, an image of Pillow, or an array of pixels.

        Args:
            source: bytes of the file, `PIL.Image.Image`, or array [height, width, 3] of uint8.

        Raises:
            EnvironmentFailedError: it is no image, or one that is too large.
            MissingExtraError: Pillow is not installed.
        """
        png = _decoded(source, _canonical)
        return cls(sha256(png).hexdigest(), png)

    @classmethod
    def from_file(cls, file: bytes) -> Image:
        """Return the image of a file; one that `of` has made is decoded, not written again.

        Raises:
            EnvironmentFailedError: it is no image, or one that is too large.
        """
        png = file if _decoded(file, _is_plain) else _decoded(file, _canonical)
        return cls(sha256(png).hexdigest(), png)

    @classmethod
    def from_url(cls, url: str) -> Image:
        """Return the image of a content part: "sha256:<name>", or a data URL with its file.

        Raises:
            ValueError: it is none of both.
            EnvironmentFailedError: the data URL has no image.
        """
        if url.startswith(_NAMED):
            return cls(checked_image_id(url.removeprefix(_NAMED)))
        head, _, data = url.partition(",")
        if not (head.startswith(_INLINE) and head.endswith(";base64")):
            raise ValueError('the url of an image is neither "sha256:..." nor a data URL')
        try:
            return cls.from_file(base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise ValueError(f"the data URL of an image is no base64: {error}") from error

    @property
    def url(self) -> str:
        """The image's name, as the url of a content part."""
        return _NAMED + self.image_id

    @property
    def data_url(self) -> str:
        """The image's file, as the url of a content part."""
        return f"{_INLINE}png;base64,{base64.b64encode(self.png or b'').decode()}"

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels, from the head of the file."""
        png = self.png or b""
        if png[: len(_SIGNATURE)] != _SIGNATURE:
            raise EnvironmentFailedError(f"image {self.image_id[:12]} is here without its file")
        width, height = struct.unpack(">II", png[16:24])
        return height, width

    def opened(self) -> PilImage:
        """Return the image as one of Pillow."""
        from PIL import Image as pillow  # noqa: N813  the module and its class have one name

        return pillow.open(BytesIO(self.png or b""), formats=("PNG",))

    def checked(self) -> Image:
        """Return the image if its file is an image with its name; it may have been built by hand.

        Raises:
            EnvironmentFailedError: it has no file, or one that is damaged or has another name.
        """
        if not isinstance(self.png, bytes):
            raise EnvironmentFailedError(
                f"image {str(self.image_id)[:12]} is here without its file"
            )
        if Image.from_file(self.png).image_id != self.image_id:
            raise EnvironmentFailedError(
                "an image has the name of another one; make it by Image.of"
            )
        return self


def checked_image_id(text: str) -> str:
    """Return the name of an image, which is a safe name of a file.

    Raises:
        ValueError: it is no SHA-256 in hexadecimal digits.
    """
    if _IMAGE_ID.fullmatch(text) is None:
        raise ValueError(f"{text[:80]!r} names no image; a name has 64 hexadecimal digits")
    return text


def _decoded(source: object, convert: Callable[[PilImage], T]) -> T:
    """Open an image within the limits and convert it."""
    try:
        from PIL import Image as pillow  # noqa: N813  the module and its class have one name
    except ImportError as error:
        raise MissingExtraError(
            "images need an extra: pip install 'rollart-flow[hf]', which reads them"
        ) from error
    try:
        pixels = _opened(source, pillow)
        _check_size(*pixels.size)
        return convert(pixels)
    except EnvironmentFailedError:
        raise
    except Exception as error:  # a decoder of hostile bytes may raise any
        raise EnvironmentFailedError(f"this is no image: {one_line(error)}") from error


def _is_plain(pixels: PilImage) -> bool:
    """Return whether the file of an image, which is decoded whole, is PNG in RGB without data."""
    pixels.load()
    return pixels.format == "PNG" and pixels.mode == "RGB" and not pixels.info


def _opened(source: object, pillow: Any) -> PilImage:
    """Return an image of Pillow, whose file may not have been decoded yet."""
    if isinstance(source, pillow.Image):
        given: PilImage = source
        return given
    if isinstance(source, bytes | bytearray | memoryview):
        if len(source) > MOST_BYTES:
            raise _too_large(f"{len(source)} bytes", f"{MOST_BYTES} bytes")
        opened: PilImage = pillow.open(BytesIO(source), formats=("PNG", "JPEG"))
        return opened
    shape, kind = getattr(source, "shape", None), str(getattr(source, "dtype", ""))
    if shape is None or len(shape) != 3 or shape[2] != 3 or kind != "uint8" or 0 in shape:
        what = type(source).__name__ if shape is None else f"an array {tuple(shape)} of {kind}"
        raise EnvironmentFailedError(
            f"{what} is no image; give PNG or JPEG bytes, an image of Pillow, or an array "
            "(height, width, 3) of uint8"
        )
    _check_size(shape[1], shape[0])
    made: PilImage = pillow.fromarray(source)
    return made


def _check_size(width: int, height: int) -> None:
    if not 0 < width * height <= MOST_PIXELS:
        raise _too_large(f"{width} x {height} pixels", f"{MOST_PIXELS} pixels")


def _canonical(pixels: PilImage) -> bytes:
    """Return the PNG file of an image: RGB, without any other data."""
    file = BytesIO()
    plain = pixels.convert("RGB")
    plain.info = {}
    plain.save(file, format="PNG", compress_level=6)
    png = file.getvalue()
    if len(png) > MOST_BYTES:
        raise _too_large(f"{len(png)} bytes as PNG", f"{MOST_BYTES} bytes")
    return png


def _too_large(found: str, limit: str) -> EnvironmentFailedError:
    return EnvironmentFailedError(f"an image has {found}, more than {limit}; make it smaller")

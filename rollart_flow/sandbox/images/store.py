"""Images in a folder, which may be on a shared file system, or below an S3 prefix.

`HEX/about.json`, which is written last, describes an image and names the folder of its pieces:
`HEX/WRITER/000000`, `HEX/WRITER/000001`, ... Writers of one image at the same time have a folder
each, since archives of equal trees may differ in times.
"""

import json
import uuid
from collections.abc import Iterator

from rollart_flow.errors import ImagePullError
from rollart_flow.sandbox.images.digest import AboutImage
from rollart_flow.sandbox.images.places import ImagePlace
from rollart_flow.store import files


class ImageStore:
    """The images of one store.

    Args:
        uri: address of the folder or prefix, as `files.normalize` takes it.
    """

    name = "store"

    def __init__(self, uri: str) -> None:
        self.uri = files.normalize(uri)

    def about(self, digits: str) -> AboutImage | None:
        found = self._read(digits)
        return None if found is None else found[0]

    def pieces(self, digits: str) -> Iterator[bytes]:
        found = self._read(digits)
        if found is None:
            raise ImagePullError(f"image {digits[:12]} is not in {self.uri}")
        _, writer, count = found
        for index in range(count):
            piece = files.read(files.join(self.uri, digits, writer, f"{index:06}"))
            if piece is None:
                raise ImagePullError(f"image {digits[:12]}: {self.uri} has lost piece {index}")
            yield piece

    def put(self, place: ImagePlace, digits: str) -> bool:
        """Store an image that another place has; False if it is here already.

        Raises:
            ImagePullError: the other place does not have it.
            StoreError: it cannot be written.
        """
        if self.about(digits) is not None:
            return False
        about = place.about(digits)
        if about is None:
            raise ImagePullError(f"image {digits[:12]}: {place.name} does not have it")
        writer, count = uuid.uuid4().hex, 0
        for piece in place.pieces(digits):
            files.write(files.join(self.uri, digits, writer, f"{count:06}"), piece)
            count += 1
        parts = {"about": json.loads(about.dump()), "writer": writer, "pieces": count}
        files.write(files.join(self.uri, digits, "about.json"), json.dumps(parts).encode())
        return True

    def _read(self, digits: str) -> tuple[AboutImage, str, int] | None:
        """Return the description of an image, the folder of its pieces and their number."""
        data = files.read(files.join(self.uri, digits, "about.json"))
        if data is None:
            return None
        try:
            parts = json.loads(data)
            about = AboutImage.load(json.dumps(parts["about"]).encode())
            return about, str(parts["writer"]), int(parts["pieces"])
        except (ValueError, TypeError, KeyError) as error:
            raise ImagePullError(f"damaged description of an image: {error}") from error

"""The image cache of a node: local folders first, then peers, then a store (ROLLART section 8).

    cache = ImageCache(Path("/var/cache/images"), store="s3://bucket/images")
    image = cache.add(Path("rootfs.tar.gz"), name="base")      # base@sha256:...
    with cache.acquire(image) as lease:
        lease.root                                             # its files, while it is held

Invariants: an image that can be acquired is complete, and its content has its digest. A node pulls
one digest once at a time, whatever its threads and processes ask for. An image is not removed while
a lease of a living process holds it.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from rollart_flow.errors import ImageError
from rollart_flow.retries import RetryPolicy
from rollart_flow.sandbox.images.archive import pack
from rollart_flow.sandbox.images.counters import CacheCounters, Counting
from rollart_flow.sandbox.images.digest import AboutImage, ImageConfig, describe, hex_digits
from rollart_flow.sandbox.images.lease import HeldImage, ImageLease
from rollart_flow.sandbox.images.local import LocalImages
from rollart_flow.sandbox.images.locks import free
from rollart_flow.sandbox.images.places import ImagePlace
from rollart_flow.sandbox.images.pull import pull
from rollart_flow.sandbox.images.sources import fill

if TYPE_CHECKING:
    from rollart_flow.sandbox.images.store import ImageStore

MAX_BYTES = 20 << 30
"""Bound of the folder on the disk unless told otherwise [bytes]."""
PULL_RETRIES = RetryPolicy(limit_s=20.0, backoff_s=0.2, backoff_cap_s=5.0)
"""How often a place is asked again before the next one."""


class ImageCache:
    """The images of this node. Its methods may be called by several threads.

    Args:
        folder: folder on a disk; made if it is missing.
        max_bytes: bound of its size [bytes].
        memory: folder in memory, such as below `/dev/shm`, for the images that were used last.
        memory_bytes: bound of its size [bytes].
        peers: caches of other nodes, asked in this order.
        store: address of a folder or S3 prefix that is asked last, and gets what is added.
        retries: how often a peer or the store is asked again.
    """

    name = "cache"

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = MAX_BYTES,
        memory: Path | None = None,
        memory_bytes: int = 0,
        peers: Sequence[ImagePlace] = (),
        store: str | None = None,
        retries: RetryPolicy = PULL_RETRIES,
    ) -> None:
        self._counting = Counting()
        self._disk = LocalImages("disk", folder, max_bytes, self._count_eviction)
        self._locals = [self._disk]
        if memory is not None:
            faster = LocalImages("memory", memory, memory_bytes, self._count_eviction)
            self._locals.insert(0, faster)
        self._store = _open_store(store)
        self._places = [*peers, *([self._store] if self._store is not None else [])]
        self._retries = retries
        self._held: dict[str, HeldImage] = {}
        self._mutex = threading.Lock()
        for part in ("names", "made"):
            (self._disk.folder / part).mkdir(exist_ok=True, mode=0o700)

    @property
    def local(self) -> LocalImages:
        """The images on the disk."""
        return self._disk

    @property
    def counters(self) -> CacheCounters:
        """Counts of hits, pulls and evictions of this cache in this process."""
        return self._counting.read()

    def add(
        self, source: str | os.PathLike[str], name: str = "", config: ImageConfig | None = None
    ) -> str:
        """Add an image and return `sha256:...`, or `NAME@sha256:...` with a name.

        Args:
            source: folder with a root file system, tar archive of one, or folder or archive of
                `docker save` or of the OCI image layout.
            name: by which `digest` and the `FROM` of a Dockerfile find it.
            config: variables and work folder for its boxes, instead of those of the source.

        Raises:
            ImageError: the source is refused or damaged, or does not fit into the cache.
            StoreError: the image cannot be written to the store.
            OSError: the source cannot be read, or the disk is full.
        """

        def write(root: Path) -> ImageConfig:
            found = fill(Path(source), root, self._disk.max_bytes)
            return config if config is not None else found

        return self.add_written(write, name)

    def add_written(self, write: Callable[[Path], ImageConfig], name: str = "") -> str:
        """Add an image whose files a function writes; return its digest, as `add`.

        Args:
            write: fills an empty folder, with a `TreeWriter`, and returns the configuration.
            name: by which `digest` and the `FROM` of a Dockerfile find it.

        Raises:
            ImageError: it does not fit into the cache.
            StoreError: it cannot be written to the store.
        """
        with self._disk.draft() as draft:
            root = draft / "root"
            root.mkdir(mode=0o755)
            about = describe(root, write(root))
            digits = hex_digits(about.digest)
            with self._disk.alone(digits):
                if not self._disk.has(digits):
                    self._disk.keep(draft, about)
        if self._store is not None:
            self._store.put(self, digits)
        return self.label(about.digest, name) if name else about.digest

    def label(self, digest: str, name: str) -> str:
        """Give an image a name, which another image may have had; return `NAME@sha256:...`."""
        if "@" in name:
            raise ImageError(f"{name!r} is no name for an image, since it has an '@'")
        self._note("names", name, f"sha256:{hex_digits(digest)}")
        return f"{name}@sha256:{hex_digits(digest)}"

    def digest(self, name: str) -> str | None:
        """Return the digest of the image that was added last under a name."""
        return self._noted("names", name)

    def acquire(self, image: str) -> ImageLease:
        """Return an image of this node, after pulling it if it is elsewhere.

        Args:
            image: `sha256:...` or `NAME@sha256:...`.

        Raises:
            ImageError: no place has it, none could send it, or there is no room.
        """
        digits = hex_digits(image)
        place = ""
        while True:
            with self._mutex:
                held = self._held.get(digits)
                if held is not None:
                    held.leases += 1
            if held is not None:
                self._counting.hit(place or held.local.name)
                return ImageLease(held, self._release)
            locked = self._lock(digits)
            if locked is not None:
                self._counting.hit(place or locked[1])
                return ImageLease(locked[0], self._release)
            place = self._pull(digits)

    def path(self, image: str) -> Path:
        """Return the folder of an image, after pulling it; only a lease keeps it there.

        Raises:
            ImageError: as `acquire`.
        """
        with self.acquire(image) as lease:
            return lease.root

    def about(self, digits: str) -> AboutImage | None:
        """Return the description of an image of this node; see `ImagePlace`."""
        found = (local.about(digits) for local in self._locals)
        return next((about for about in found if about is not None), None)

    def pieces(self, digits: str) -> Iterator[bytes]:
        """Yield an image of this node as an archive, for another one; see `ImagePlace`."""
        locked = self._lock(digits)
        if locked is None:
            raise ImageError(f"image {digits[:12]} is not on this node")
        with ImageLease(locked[0], self._release) as lease:
            yield from pack(lease.root)

    def _release(self, held: HeldImage) -> None:
        """End one lease."""
        with self._mutex:
            held.leases -= 1
            if held.leases:
                return
            digits = hex_digits(held.about.digest)
            if self._held.get(digits) is held:
                del self._held[digits]
        free(held.lock)

    def once(self, key: str, make: Callable[[], str]) -> str:
        """Return the image that was made from a key, after making it if that is to be done.

        One thread of the node makes it, and the others wait for it.

        Args:
            key: name of what is made, such as a digest of all that decides it.
            make: adds the image and returns its digest.

        Raises:
            ImageError: `make` raised it.
        """
        with self._disk.alone(f"made-{key}"):
            digest = self._noted("made", key)
            if digest is not None:
                with suppress(ImageError):  # it was evicted, and is nowhere else
                    self.acquire(digest).release()
                    return digest
            digest = make()
            self._note("made", key, digest)
            return digest

    def _noted(self, kind: str, key: str) -> str | None:
        try:
            return (self._disk.folder / kind / quote(key, safe="")).read_text()
        except FileNotFoundError:
            return None

    def _note(self, kind: str, key: str, digest: str) -> None:
        target = self._disk.folder / kind / quote(key, safe="")
        written = target.with_name(f".{os.getpid()}-{threading.get_ident()}")
        written.write_text(digest)
        written.replace(target)

    def _lock(self, digits: str) -> tuple[HeldImage, str] | None:
        """Lock an image of this node for a lease, and name the folder that had it."""
        for local in self._locals:
            lock = local.share(digits)
            if lock is None:
                continue
            about = local.about(digits)
            assert about is not None
            faster = self._locals[0]
            if local is not faster and self._promote(local, faster, about):
                promoted = faster.share(digits)
                if promoted is not None:
                    free(lock)
                    return self._hold(faster, about, promoted), local.name
            return self._hold(local, about, lock), local.name
        return None

    def _hold(self, local: LocalImages, about: AboutImage, lock: int) -> HeldImage:
        """Keep a lock for this process, or count one more lease of the one that it has."""
        digits = hex_digits(about.digest)
        with self._mutex:
            held = self._held.get(digits)
            if held is None:
                held = self._held[digits] = HeldImage(local, about, lock)
                return held
            held.leases += 1
        free(lock)
        return held

    def _promote(self, local: LocalImages, faster: LocalImages, about: AboutImage) -> bool:
        """Copy an image to a faster folder; False if there is no room for it."""
        digits = hex_digits(about.digest)
        try:
            with faster.alone(digits):
                if not faster.has(digits):
                    with faster.work(about) as work:
                        (work / "root").mkdir(mode=0o755)
                        fill(local.root(digits), work / "root", about.size_bytes)
                        faster.keep(work, about)
        except ImageError:
            return False
        return True

    def _pull(self, digits: str) -> str:
        """Pull an image to the disk unless another thread or process just did; name the place."""
        with self._disk.alone(digits):
            if self._disk.has(digits):
                return self._disk.name
            return pull(digits, self._places, self._disk, self._retries, self._counting)

    def _count_eviction(self) -> None:
        self._counting.add("evictions")


def _open_store(uri: str | None) -> "ImageStore | None":
    if uri is None:
        return None
    from rollart_flow.sandbox.images.store import ImageStore  # it may load boto3

    return ImageStore(uri)

"""Storage of whole folders (weights of a version, a checkpoint, the policy), local or in S3.

A store holds folders by name. The invariant: a folder is whole or absent under its name, regardless
of concurrent writes, removals and killed processes. Callers that need files get a folder on this
machine: the stored folder itself if the store is local, otherwise a copy.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from rollart_flow.store import files
from rollart_flow.weights.folders import clear_leftovers, locked, put_folder, remove_folder

Fill = Callable[[Path], None]
"""A function that writes files into the given empty folder."""


class FolderStore(ABC):
    """A store of whole folders by name. Every method raises OSError if the storage fails."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the sorted names of the folders."""

    @abstractmethod
    def read(self, name: str, file: str) -> bytes:
        """Return the content of one file of a folder."""

    @abstractmethod
    def opened(self, name: str) -> AbstractContextManager[Path]:
        """Provide a folder on this machine while the context lasts."""

    @abstractmethod
    def local_path(self, name: str) -> Path:
        """Return the path of a folder on this machine that persists."""

    @abstractmethod
    def put(self, name: str, fill: Fill) -> bool:
        """Create or replace a folder; return False if another process did so at the same moment."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a folder atomically."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Hold the exclusive right of this machine to put and remove folders, if the store needs
        it.
        """

    @abstractmethod
    def workshop(self, name: str) -> Path:
        """Return the path at which a folder is built manually; all processes of this machine share
        it.
        """

    @abstractmethod
    def finish(self, name: str) -> None:
        """Move the completed folder from the workshop to its place, unless it is already there."""


class LocalFolderStore(FolderStore):
    """A store of folders on this machine, or on a file system that several machines share."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def names(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        names = (path.name for path in self._folder.iterdir() if path.is_dir())
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str, file: str) -> bytes:
        return (self._folder / name / file).read_bytes()

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        yield self._folder / name

    def local_path(self, name: str) -> Path:
        return self._folder / name

    def put(self, name: str, fill: Fill) -> bool:
        put_folder(self._folder / name, fill)
        return True

    def remove(self, name: str) -> None:
        remove_folder(self._folder / name)

    @contextmanager
    def writing(self) -> Iterator[None]:
        with locked(self._folder):
            clear_leftovers(self._folder)
            yield

    def workshop(self, name: str) -> Path:
        return self._folder / name

    def finish(self, name: str) -> None:
        """Do nothing: the workshop of a local folder is its final place."""


def folder_store_at(uri: str) -> FolderStore:
    """Return the folder store at an address.

    Raises:
        OSError: the bucket does not answer.
        MissingExtraError: the address is in S3 and boto3 is not installed.
    """
    if not files.is_remote(uri):
        return LocalFolderStore(uri)
    from rollart_flow.weights.s3_folder_store import S3FolderStore

    return S3FolderStore(uri)


def folder_store_of(folder: str) -> tuple[FolderStore, str]:
    """Return (store, name) of the folder at an address."""
    parent, name = files.split(folder)
    return folder_store_at(parent), name


def local_path(folder: str) -> str:
    """Return a persistent path on this machine for the folder at an address.

    Raises:
        StoreError: it is in S3 and cannot be read.
    """
    with files.converting(f"cannot read {folder}"):
        place, name = folder_store_of(folder)
        return str(place.local_path(name))


@contextmanager
def opened(folder: str) -> Iterator[Path]:
    """Provide the folder at an address on this machine while the context lasts.

    Raises:
        StoreError: it is in S3 and cannot be read.
    """
    with ExitStack() as copy:
        with files.converting(f"cannot read {folder}"):
            place, name = folder_store_of(folder)
            here = copy.enter_context(place.opened(name))
        yield here


@contextmanager
def made(folder: str) -> Iterator[Path]:
    """Provide a path at which to build a folder, which is moved to its address when the context
    ends.

    A local folder is built in its final place, so the caller must ensure that it is whole.

    Raises:
        StoreError: the folder cannot be moved to its address.
    """
    with files.converting(f"cannot write {folder}"):
        place, name = folder_store_of(folder)
    yield place.workshop(name)
    with files.converting(f"cannot write {folder}"):
        place.finish(name)


def file_in(folder: str, name: str) -> bytes | None:
    """Return one file of the folder at an address, or None if the file does not exist.

    Raises:
        StoreError: the file cannot be read.
    """
    with files.converting(f"cannot read {folder}/{name}"):
        place, own = folder_store_of(folder)
        try:
            return place.read(own, name)
        except FileNotFoundError:
            return None


def names_in(place: str) -> list[str]:
    """Return the sorted names of the whole folders at an address.

    Raises:
        StoreError: the folders cannot be listed.
    """
    with files.converting(f"cannot list {place}"):
        return folder_store_at(place).names()

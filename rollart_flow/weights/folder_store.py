"""Where whole folders lie (weights of a version, a checkpoint, the policy): local or in S3.

A place holds folders by name. The invariant: under its name a folder is whole or absent, whatever
is written, removed or killed meanwhile. Whoever needs files gets a folder of this machine: the very
one where the place is local, a copy of it otherwise.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from rollart_flow.store import files
from rollart_flow.weights.folders import clear_leftovers, locked, put_folder, remove_folder

Fill = Callable[[Path], None]
"""Writes files into the empty folder that it is given."""


class FolderStore(ABC):
    """Whole folders by name. Every method raises OSError where storage fails."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the folders that are there, sorted."""

    @abstractmethod
    def read(self, name: str, file: str) -> bytes:
        """One file of a folder."""

    @abstractmethod
    def opened(self, name: str) -> AbstractContextManager[Path]:
        """A folder as a folder of this machine, for as long as the context lasts."""

    @abstractmethod
    def local_path(self, name: str) -> Path:
        """A folder as a folder of this machine that stays."""

    @abstractmethod
    def put(self, name: str, fill: Fill) -> bool:
        """Make or replace a folder; False where another process did so at the same moment."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Take a folder away at once."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Be the only one of this machine who puts and removes, where others might."""

    @abstractmethod
    def workshop(self, name: str) -> Path:
        """Where a folder is made by hand; the same path in all processes of this machine."""

    @abstractmethod
    def finish(self, name: str) -> None:
        """What was made in the workshop is whole: put it in place, if it is not there already."""


class LocalFolderStore(FolderStore):
    """Folders of this machine, or of a file system that several share."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def names(self) -> list[str]:
        """See `FolderStore.names`."""
        if not self._folder.is_dir():
            return []
        names = (path.name for path in self._folder.iterdir() if path.is_dir())
        return sorted(name for name in names if not name.startswith("."))

    def read(self, name: str, file: str) -> bytes:
        """See `FolderStore.read`."""
        return (self._folder / name / file).read_bytes()

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """See `FolderStore.opened`."""
        yield self._folder / name

    def local_path(self, name: str) -> Path:
        """See `FolderStore.local_path`."""
        return self._folder / name

    def put(self, name: str, fill: Fill) -> bool:
        """See `FolderStore.put`."""
        put_folder(self._folder / name, fill)
        return True

    def remove(self, name: str) -> None:
        """See `FolderStore.remove`."""
        remove_folder(self._folder / name)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See `FolderStore.writing`."""
        with locked(self._folder):
            clear_leftovers(self._folder)
            yield

    def workshop(self, name: str) -> Path:
        """See `FolderStore.workshop`."""
        return self._folder / name

    def finish(self, name: str) -> None:
        """See `FolderStore.finish`."""


def folder_store_at(uri: str) -> FolderStore:
    """The place at an address.

    Raises:
        OSError: it is in a bucket that does not answer.
        MissingExtraError: it is in S3, and boto3 is not installed.
    """
    if not files.is_remote(uri):
        return LocalFolderStore(uri)
    from rollart_flow.weights.s3_folder_store import S3FolderStore

    return S3FolderStore(uri)


def folder_store_of(folder: str) -> tuple[FolderStore, str]:
    """(place, name) of the folder at an address."""
    parent, name = files.split(folder)
    return folder_store_at(parent), name


def local_path(folder: str) -> str:
    """The folder at an address as a folder of this machine that stays.

    Raises:
        StoreError: it is in S3 and cannot be read.
    """
    with files.converting(f"cannot read {folder}"):
        place, name = folder_store_of(folder)
        return str(place.local_path(name))


@contextmanager
def opened(folder: str) -> Iterator[Path]:
    """The folder at an address as a folder of this machine, for as long as the context lasts.

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
    """A path at which the folder of an address is made; it is in place once the context has ended.

    Locally that is its very place, so that whoever makes it sees to it that it is whole.

    Raises:
        StoreError: it cannot be put in place.
    """
    with files.converting(f"cannot write {folder}"):
        place, name = folder_store_of(folder)
    yield place.workshop(name)
    with files.converting(f"cannot write {folder}"):
        place.finish(name)


def file_in(folder: str, name: str) -> bytes | None:
    """One file of the folder at an address; None where it is not there.

    Raises:
        StoreError: it cannot be read.
    """
    with files.converting(f"cannot read {folder}/{name}"):
        place, own = folder_store_of(folder)
        try:
            return place.read(own, name)
        except FileNotFoundError:
            return None


def names_in(place: str) -> list[str]:
    """Names of the whole folders at an address, sorted.

    Raises:
        StoreError: they cannot be listed.
    """
    with files.converting(f"cannot list {place}"):
        return folder_store_at(place).names()

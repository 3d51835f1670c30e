"""The base class of stores of whole folders, and the store on a local file system.

A store holds folders by name. The invariant: a folder is whole or absent under its name, regardless
of concurrent writes, removals and killed processes. On a local file system, folders and files are
filled under a hidden name next to their target, flushed to disk and renamed; a crash leaves at most
a hidden leftover, which `clear_leftovers` removes. Readers that know of it read a folder while it
is filled (`FolderStore.arriving`).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from rollart_flow.weights.atomic import (
    LEFTOVER,
    clear_leftovers,
    flush,
    flush_all,
    locked,
    put_folder,
    remove_folder,
)
from rollart_flow.weights.buckets import BUCKET_BYTES
from rollart_flow.weights.following import announce
from rollart_flow.weights.terms import FolderTerm

_READ_BYTES = 4 << 20
"""Bytes of an arriving file that are read at a time; the last ones are read and hashed after the
file is whole."""
Files = Iterable[tuple[str, Iterable[memoryview]]]
"""Files by name, in order, each with its content in pieces."""


class ArrivingFolder(ABC):
    """A folder that is being put. Every method raises OSError once it never will be, or is gone."""

    bucket_bytes: int
    """Size of all buckets of a file but the last."""

    @abstractmethod
    def content(self, file: str) -> bytes | None:
        """Return what there is of a file that has one bucket, or None if there is nothing yet."""

    @abstractmethod
    def bucket(self, file: str, number: int, into: memoryview) -> bool:
        """Read a bucket of this size, and return whether it is there with all its bytes."""

    @abstractmethod
    def whole(self) -> bool:
        """Return whether the folder is in its place."""


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
    def put(self, name: str, files: Files, *, lasting: bool = True) -> bool:
        """Create or replace a folder; return False if another process did so at the same moment.

        A folder that need not be `lasting` may be damaged by a power failure soon afterwards.
        """

    def make_lasting(self, name: str) -> None:  # noqa: B027  by default all folders are
        """Return once a folder would outlive a power failure."""

    @abstractmethod
    def arriving(self, name: str) -> "ArrivingFolder | None":
        """Return the folder that is being put under a name, or None."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a folder atomically."""

    @abstractmethod
    def writing(self, term: FolderTerm) -> AbstractContextManager[None]:
        """Hold the exclusive right to put and remove folders of a term, if the store needs it."""

    @abstractmethod
    def clear_leftovers(self, term: FolderTerm) -> None:
        """Remove what killed processes of this term and of those before it left unfinished."""

    @abstractmethod
    def workshop(self, name: str) -> Path:
        """Return the path at which to build a folder; all processes of this machine share it."""

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

    def put(self, name: str, files: Files, *, lasting: bool = True) -> bool:
        def fill(folder: Path) -> None:
            for file, content in files:
                with (folder / file).open("wb") as stream:
                    _write(stream, content)
                announce()

        put_folder(self._folder / name, fill, lasting=lasting)
        return True

    def make_lasting(self, name: str) -> None:
        flush_all(self._folder / name)
        flush(self._folder)

    def arriving(self, name: str) -> ArrivingFolder | None:
        for hidden in self._folder.glob(f"{LEFTOVER}{name}-*"):
            return _LocalArrivingFolder(self._folder / name, hidden)
        return None

    def remove(self, name: str) -> None:
        remove_folder(self._folder / name)

    @contextmanager
    def writing(self, term: FolderTerm) -> Iterator[None]:
        # A lock for each term, since a driver may have been stopped while it held its own.
        with locked(self._folder, f".lock{term.suffix}"):
            self.clear_leftovers(term)
            yield

    def clear_leftovers(self, term: FolderTerm) -> None:
        clear_leftovers(self._folder, term)

    def workshop(self, name: str) -> Path:
        return self._folder / name

    def finish(self, name: str) -> None:
        """Do nothing: the workshop of a local folder is its final place."""


class _LocalArrivingFolder(ArrivingFolder):
    """A folder under its hidden name, and then at its target.

    Each read opens the file, since a network file system shows what other hosts wrote before that.
    """

    def __init__(self, target: Path, hidden: Path) -> None:
        self.bucket_bytes = min(BUCKET_BYTES, _READ_BYTES)
        self._target = target
        self._hidden = hidden

    def content(self, file: str) -> bytes | None:
        with self._opened(file) as stream:
            return None if stream is None else stream.read()

    def bucket(self, file: str, number: int, into: memoryview) -> bool:
        with self._opened(file) as stream:
            if stream is None:
                return False
            stream.seek(number * self.bucket_bytes)
            return stream.readinto(into) == into.nbytes

    def whole(self) -> bool:
        if self._hidden.exists():
            return False
        if not self._target.exists():
            raise FileNotFoundError(f"{self._target} was removed, or never was whole")
        return True

    def _opened(self, file: str) -> AbstractContextManager[BufferedReader | None]:
        try:
            return (self._hidden / file).open("rb")
        except FileNotFoundError:
            return (self._target / file).open("rb") if self.whole() else nullcontext()


def _write(stream: BinaryIO, content: Iterable[memoryview]) -> None:
    """Write a file, and flush it to disk bucket by bucket: other hosts see it in this order."""
    unflushed = 0
    for piece in content:
        stream.write(piece)
        unflushed += piece.nbytes
        if unflushed >= BUCKET_BYTES:
            stream.flush()
            os.fdatasync(stream.fileno())
            announce()
            unflushed = 0

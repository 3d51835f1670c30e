"""A folder of named blobs: the small files of a run, on a local disk or in S3.

Guarantees of every variant: a blob that can be read is complete; of any number of processes that
write an exclusive name at the same time, one succeeds; a write that has returned survives a power
failure. On a local disk that takes fsync, which `ROLLART_FSYNC=0` turns off where it is too slow.
"""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO

FSYNC_VARIABLE = "ROLLART_FSYNC"


class Blobs(ABC):
    """Blobs by name, which may have slashes. Every method raises OSError if storage fails."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The bytes of a blob, or None if it does not exist."""

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
        """Write or replace a blob; if `exclusive` and it exists, return False and do nothing."""

    @abstractmethod
    def write_new(self, name: str, data: memoryview) -> None:
        """Write a blob under an unused name in one operation; a partial blob is removed."""

    @abstractmethod
    def sync(self, names: Sequence[str]) -> None:
        """Make blobs that another library wrote survive a power failure, with their folders."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a blob; a missing blob is not an error."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Names of the subfolders, sorted; empty if the folder does not exist."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the blobs of the folder and its subfolders, sorted; empty if there is none."""

    @abstractmethod
    def remove_all(self, names: Sequence[str]) -> None:
        """Remove blobs in this order; missing ones are not an error."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the folder with all its contents."""


class LocalBlobs(Blobs):
    """Files of a local folder, or of a shared file system."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        try:
            with open(self._path(name), "rb") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
        target = self._path(name)
        folder, file = os.path.split(target)
        os.makedirs(folder, exist_ok=True)
        # The blob gets its name once its bytes are complete.
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{file}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                _sync(stream)
            os.chmod(temporary, 0o644)
            if exclusive:
                os.link(temporary, target)
                os.unlink(temporary)
            else:
                os.replace(temporary, target)
        except BaseException as error:
            os.unlink(temporary)
            if exclusive and isinstance(error, FileExistsError):
                return False
            raise
        _sync_path(folder)
        return True

    def write_new(self, name: str, data: memoryview) -> None:
        target = self._path(name)
        stream = open(target, "xb")  # noqa: SIM115  only what was opened here is removed below
        try:
            with stream:
                stream.write(data)
                _sync(stream)  # on journaled file systems, the name of a new file with it
        except OSError:
            with suppress(OSError):
                os.unlink(target)
            raise

    def sync(self, names: Sequence[str]) -> None:
        folders = {self._folder}
        for name in names:
            _sync_path(self._path(name))
            while name := os.path.dirname(name):
                folders.add(self._path(name))
        for folder in sorted(folders, reverse=True):  # the inner ones first
            _sync_path(folder)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def folders(self) -> list[str]:
        if not os.path.isdir(self._folder):
            return []
        with os.scandir(self._folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def names(self) -> list[str]:
        return sorted(
            os.path.relpath(os.path.join(folder, file), self._folder)
            for folder, _, found in os.walk(self._folder)
            for file in found
        )

    def remove_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.remove(name)

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    if _syncs():
        os.fsync(stream.fileno())


def _sync_path(path: str) -> None:
    if _syncs():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _syncs() -> bool:
    return os.environ.get(FSYNC_VARIABLE) != "0"

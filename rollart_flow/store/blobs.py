"""A folder of named blobs: the small files of a run, on a local disk or in S3.

Guarantees of every variant: a blob that can be read is complete; of any number of processes that
write an exclusive name at the same time, one succeeds.
"""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path


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
    def remove(self, name: str) -> None:
        """Remove a blob; a missing blob is not an error."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Names of the subfolders, sorted; empty if the folder does not exist."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the folder with all its contents."""


class LocalBlobs(Blobs):
    """Files of a local folder, or of a shared file system."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # The blob gets its name once its bytes are complete.
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
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
        return True

    def write_new(self, name: str, data: memoryview) -> None:
        target = self._folder / name
        stream = open(target, "xb")  # noqa: SIM115  only what was opened here is removed below
        try:
            with stream:
                stream.write(data)
        except OSError:
            with suppress(OSError):
                os.unlink(target)
            raise

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._folder / name)

    def folders(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def clear(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

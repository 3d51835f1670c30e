"""A folder of named blobs: small files of a run, wherever it lies.

What a variant promises: a blob that is read is whole, never half-written; an exclusive name goes to
one of many who want it at the same moment, in whatever processes.
"""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path


class Blobs(ABC):
    """Blobs by name. A name may have slashes. Every method raises OSError where storage fails."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The bytes of a blob, or None where there is none."""

    @abstractmethod
    def write(self, name: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
        """Write or replace a blob; False, and nothing done, if `exclusive` and it is there."""

    @abstractmethod
    def write_new(self, name: str, data: memoryview) -> None:
        """Write a blob that nobody else names yet, in one go; what failed is removed."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a blob; one that is not there is no error."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Names of the folders directly in this one, sorted; none where it does not exist."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything."""


class LocalBlobs(Blobs):
    """Files of a folder of this machine, or of a file system that several share."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def read(self, name: str) -> bytes | None:
        """See `Blobs.read`."""
        try:
            return (self._folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
        """See `Blobs.write`. The name appears once the bytes are there."""
        target = self._folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
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
        """See `Blobs.write_new`."""
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
        """See `Blobs.remove`."""
        with suppress(FileNotFoundError):
            os.unlink(self._folder / name)

    def folders(self) -> list[str]:
        """See `Blobs.folders`."""
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def clear(self) -> None:
        """See `Blobs.clear`."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

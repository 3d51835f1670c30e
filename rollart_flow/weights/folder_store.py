"""Addresses of whole folders (weights of a version, a checkpoint, the policy), local or in S3.

Callers that need files get a folder on this machine: the stored folder itself if it is local,
otherwise a copy. See `weights.folders` for what a folder store promises.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rollart_flow.store import files
from rollart_flow.weights.folders import FolderStore, LocalFolderStore


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

"""Small files and folders of a store, local or in S3, by their address.

Everything else in `store/` handles addresses as strings (an absolute path, or `s3://bucket/prefix`)
and Delta tables. Only this module distinguishes local from remote addresses (`blobs_at`); `blobs`
states the guarantees of both. Tables go through deltalake and polars, with `storage_options`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from rollart_flow.errors import SettingsError, StoreAwayError, StoreError
from rollart_flow.store.blobs import Blobs, LocalBlobs

_READ_RETRIES, _READ_RETRY_MS = 100, 60_000
"""Retry limits for polars, equal to those given to deltalake; the default of polars is two."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_UNUSABLE = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f\x7f]")
"""Characters that deltalake would take for an encoded letter, a separator, or no address."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def storage_options(uri: str) -> dict[str, str] | None:
    """Current options for deltalake and polars; None for a local path. They contain secrets.

    Raises:
        StoreError: the bucket cannot be reached.
        MissingExtraError: boto3 is not installed.
    """
    if not is_remote(uri):
        return None
    from rollart_flow.store.s3.access import bucket

    with converting(f"cannot reach {uri}"):
        return bucket(urlsplit(uri).netloc).storage_options()


def reading_options(uri: str) -> dict[str, Any] | None:
    """Extra options for polars, besides the storage options of a table; None for a local path."""
    if not is_remote(uri):
        return None
    return {"max_retries": _READ_RETRIES, "retry_timeout_ms": _READ_RETRY_MS}


def blobs_at(folder: str) -> Blobs:
    """The blobs of a folder, local or in S3.

    Raises:
        OSError: the bucket of the folder cannot be reached.
        MissingExtraError: boto3 is not installed.
    """
    if not is_remote(folder):
        return LocalBlobs(folder)
    from rollart_flow.store.s3.blobs import S3Blobs

    return S3Blobs(folder)


def check_writable(run: str) -> None:
    """Refuse a run in a store that cannot be written safely; a local store always can.

    Raises:
        StoreError: the store does not answer, or two writers could overwrite each other.
    """
    if not is_remote(run):
        return
    from rollart_flow.store.s3.blobs import check_conditional_puts

    with converting(f"cannot write {run}"):
        check_conditional_puts(split(run)[0])


def is_remote(uri: str) -> bool:
    """Whether `uri` names an object store rather than a folder of this machine."""
    return uri.startswith("s3://")


def normalize(address: str | os.PathLike[str]) -> str:
    """Convert an address to an absolute local path or `s3://bucket/prefix`, without final slash.

    Raises:
        SettingsError: the address is neither, or has letters that cannot be used.
    """
    uri = os.fspath(address)
    if wrong := _UNUSABLE.search(uri):
        raise SettingsError(
            f"{wrong[0]!r} cannot stand in the address of a store or the name of a run; "
            "take another name, such as one with '-' in its place"
        )
    scheme = _SCHEME.match(uri)
    if scheme is None or scheme[1] == "file":
        return os.path.abspath(os.path.expanduser(uri.removeprefix("file://")))
    if scheme[1] not in ("s3", "s3a"):
        raise SettingsError(f"{scheme[1]}:// is no store; take a folder or s3://bucket/prefix")
    return _normal_s3(uri)


def _normal_s3(uri: str) -> str:
    """Normalize an address in S3; error messages do not repeat credentials of the address."""
    parts = urlsplit(uri)
    if "@" in parts.netloc:
        raise SettingsError(
            "an s3:// address takes no credentials; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    if parts.query or parts.fragment:
        raise SettingsError(f"s3://{parts.netloc}{parts.path} must end there, without ? and #")
    if not _BUCKET.fullmatch(parts.netloc):
        raise SettingsError(
            f"{uri!r} names no bucket; write s3://bucket/prefix, with a bucket of 3 to 63 small "
            "letters, digits, '-' and '.'"
        )
    path = "/".join(name for name in parts.path.split("/") if name)
    return f"s3://{parts.netloc}/{path}".rstrip("/")


def join(uri: str, *names: str) -> str:
    """The address of a file or folder inside the folder `uri`."""
    return "/".join((uri, *names))


def split(uri: str) -> tuple[str, str]:
    """Split an address into (address of the folder, name within the folder)."""
    folder, _, name = uri.rpartition("/")
    return folder, name


def one_line(error: BaseException) -> str:
    """The first paragraph of an error message, without line breaks, colors or arrows."""
    paragraph = _COLOUR.sub("", str(error)).strip().split("\n\n", 1)[0]
    line = " ".join(paragraph.split()).replace(" ↳", ":")
    return line or type(error).__name__


@contextmanager
def converting(doing: str) -> Iterator[None]:
    """Convert failures of the file system to a `StoreError` that names the failed operation; a
    server that is away gives a `StoreAwayError`."""
    try:
        yield
    except StoreError:
        raise
    except ConnectionError as error:
        raise StoreAwayError(f"{doing}: {one_line(error)}") from error
    except OSError as error:
        raise StoreError(f"{doing}: {error.strerror or one_line(error)}") from error


def read(uri: str) -> bytes | None:
    """The bytes of a file, or None if there is no such file.

    Raises:
        StoreError: the file exists but cannot be read.
    """
    folder, name = split(uri)
    with converting(f"cannot read {uri}"):
        return blobs_at(folder).read(name)


def write(uri: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
    """Write a whole file atomically, making its folder.

    Returns:
        False if `exclusive` is set and the file exists already, otherwise True.

    Raises:
        StoreError: the file cannot be written; nothing was changed.
    """
    folder, name = split(uri)
    with converting(f"cannot write {uri}"):
        return blobs_at(folder).write(name, data, exclusive=exclusive)


def write_new(uri: str, data: memoryview) -> None:
    """Write a file that nothing refers to yet (a data file before its commit), in one operation.

    Raises:
        StoreError: the file cannot be written; a partial file is removed.
    """
    folder, name = split(uri)
    with converting(f"cannot write {uri}"):
        blobs_at(folder).write_new(name, data)


def sync(folder: str, *names: str) -> None:
    """Make files that another library wrote in a folder survive a power failure.

    Raises:
        StoreError: a file is missing, or the disk fails.
    """
    with converting(f"cannot sync files of {folder}"):
        blobs_at(folder).sync(names)


def remove(uri: str) -> None:
    """Remove a file; a missing file is not an error."""
    folder, name = split(uri)
    with converting(f"cannot remove {uri}"):
        blobs_at(folder).remove(name)


def remove_all(folder: str, names: Sequence[str]) -> None:
    """Remove files of a folder, in this order; missing files are not an error."""
    with converting(f"cannot remove files of {folder}"):
        blobs_at(folder).remove_all(names)


def names(folder: str) -> list[str]:
    """Paths of all files in a folder and its subfolders, sorted; empty if there is no folder."""
    with converting(f"cannot list {folder}"):
        return blobs_at(folder).names()


def folders(uri: str) -> list[str]:
    """Names of the folders inside a folder, sorted; empty if the folder does not exist."""
    with converting(f"cannot list {uri}"):
        return blobs_at(uri).folders()


def clear(uri: str) -> None:
    """Remove a folder with all its contents; a missing folder is not an error."""
    with converting(f"cannot remove {uri}"):
        blobs_at(uri).clear()

"""Small files and folders of a store, local or remote; the only place that tells them apart.

Everything else in `store/` handles addresses as strings (an absolute path, or a URI such as
`s3://bucket/runs`) and Delta tables. Remote files go through `pyarrow.fs`, tables through
deltalake and polars; all three take their credentials from the same environment variables. The
invariant: a file that is read is whole, never half-written.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError, TableNotFoundError

from rollart_flow.errors import StoreError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ALLOW_HTTP",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
)


def storage_options(uri: str) -> dict[str, str] | None:
    """Options for deltalake and polars from the environment; None for a local path."""
    if not is_remote(uri):
        return None
    return {name: os.environ[name] for name in _CREDENTIALS if name in os.environ}


def is_remote(uri: str) -> bool:
    """Whether `uri` names an object store rather than a folder of this machine."""
    return "://" in uri and not uri.startswith("file://")


def normalize(address: str | os.PathLike[str]) -> str:
    """An absolute local path, or the URI as it is, without a slash at the end."""
    uri = os.fspath(address)
    if is_remote(uri):
        return uri.rstrip("/")
    return os.path.abspath(os.path.expanduser(uri.removeprefix("file://")))


def join(uri: str, *names: str) -> str:
    """The address of something inside the folder `uri`."""
    return "/".join((uri, *names))


def one_line(error: BaseException) -> str:
    """The first paragraph of what an error says, without line breaks, colours or arrows."""
    paragraph = _COLOUR.sub("", str(error)).strip().split("\n\n", 1)[0]
    line = " ".join(paragraph.split()).replace(" ↳", ":")
    return line or type(error).__name__


@contextmanager
def converting(doing: str) -> Iterator[None]:
    """Turn failures of the file system into one `StoreError` that says what was being done."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{doing}: {error.strerror or one_line(error)}") from error
    except (DeltaError, TableNotFoundError) as error:
        raise StoreError(f"{doing}: {one_line(error)}") from error


def read(uri: str) -> bytes | None:
    """The bytes of a file, or None where there is no such file.

    Raises:
        StoreError: it is there but cannot be read.
    """
    with converting(f"cannot read {uri}"):
        if is_remote(uri):
            folder, name = uri.rsplit("/", 1)
            remote = filesystem(folder)
            if remote.get_file_info(name).type is not pafs.FileType.File:
                return None
            with remote.open_input_stream(name) as stream:
                return bytes(stream.read())
        try:
            return Path(uri).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


def write(uri: str, data: bytes | memoryview, *, exclusive: bool = False) -> bool:
    """Write a whole file atomically, making its folder; False if `exclusive` and it is there.

    Locally the name appears once the bytes are there, and exclusively among processes. A put of an
    object store is atomic, but exclusive only as far as nobody else puts at the same moment.

    Raises:
        StoreError: it cannot be written; nothing was changed.
    """
    with converting(f"cannot write {uri}"):
        folder, name = uri.rsplit("/", 1)
        if not is_remote(uri):
            return _write_locally(Path(folder), name, data, exclusive)
        if exclusive and read(uri) is not None:
            return False
        with filesystem(folder).open_output_stream(name) as stream:
            stream.write(data)
        return True


def _write_locally(folder: Path, name: str, data: bytes | memoryview, exclusive: bool) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)
        if exclusive:
            os.link(temporary, folder / name)
            os.unlink(temporary)
        else:
            os.replace(temporary, folder / name)
    except BaseException as error:
        os.unlink(temporary)
        if exclusive and isinstance(error, FileExistsError):
            return False
        raise
    return True


def write_new(uri: str, data: memoryview) -> None:
    """Write a file that nothing names yet (a data file before its commit), in one go.

    Raises:
        StoreError: it cannot be written; what was written of it is removed.
    """
    if is_remote(uri):
        write(uri, data)
        return
    with converting(f"cannot write {uri}"):
        stream = open(uri, "xb")  # noqa: SIM115  only what was opened here is removed below
        try:
            with stream:
                stream.write(data)
        except OSError:
            with suppress(OSError):
                os.unlink(uri)
            raise


def remove(uri: str) -> None:
    """Remove a file; one that is not there is no error."""
    with converting(f"cannot remove {uri}"):
        if is_remote(uri):
            folder, name = uri.rsplit("/", 1)
            filesystem(folder).delete_file(name)
            return
        with suppress(FileNotFoundError):
            os.unlink(uri)


def folders(uri: str) -> list[str]:
    """Names of the folders inside a folder, sorted; none where it does not exist."""
    with converting(f"cannot list {uri}"):
        if is_remote(uri):
            infos = filesystem(uri).get_file_info(pafs.FileSelector("", allow_not_found=True))
            return sorted(i.base_name for i in infos if i.type is pafs.FileType.Directory)
        if not os.path.isdir(uri):
            return []
        with os.scandir(uri) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())


def filesystem(folder: str) -> pafs.FileSystem:
    """A file system whose paths are relative to a folder, local or remote."""
    if not is_remote(folder):
        return pafs.SubTreeFileSystem(folder, pafs.LocalFileSystem())
    scheme, path = folder.split("://", 1)
    if scheme in ("s3", "s3a"):
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        return pafs.SubTreeFileSystem(path, _s3(os.environ.get("AWS_ENDPOINT_URL"), region))
    found, path = pafs.FileSystem.from_uri(folder)
    return pafs.SubTreeFileSystem(path, found)


@cache
def _s3(endpoint: str | None, region: str | None) -> pafs.FileSystem:
    """Credentials are found by the AWS library itself, in the same variables."""
    plain = endpoint is not None and endpoint.startswith("http://")
    return pafs.S3FileSystem(
        endpoint_override=endpoint, region=region, scheme="http" if plain else "https"
    )

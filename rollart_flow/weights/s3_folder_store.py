"""Whole folders in S3: files under keys that are never rewritten, listed by an object written last.

    <place>/<name>/folder.json            which files it has: key, size and checksum of each
    <place>/<name>/<upload>/<file>        one file, of one upload
    <place>/<name>/<upload>/<file>/00003  bucket 3 of a file that was read while it was put
    <place>/<name>/arriving.json          the upload in progress, removed after its end

The invariant: `folder.json` appears after the files that it names, by a conditional put, so a
reader finds all files of one upload or none, and of two concurrent writers one is notified.
"""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from uuid import uuid4

from rollart_flow.store import files
from rollart_flow.store.cache import cache_folder, touch
from rollart_flow.store.s3.blobs import S3Blobs, Tagged
from rollart_flow.validation import check_file_name
from rollart_flow.weights.buckets import BUCKET_BYTES, pack
from rollart_flow.weights.folders import ArrivingFolder, Files, FolderStore
from rollart_flow.weights.following import announce
from rollart_flow.weights.terms import FolderTerm, term_of

T = TypeVar("T")
_FOLDER = "folder.json"
_ARRIVING = "arriving.json"
_AT_ONCE = 4
"""Number of files or buckets transferred at a time; each file is also split into parts."""


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a folder as listed in `folder.json`."""

    name: str
    upload: str
    size_bytes: int
    sha256: str
    bucket_bytes: int = 0
    """Size of all buckets but the last; 0 if the file is one object."""

    def __post_init__(self) -> None:
        """Check what another user's list says, before any file is written."""
        check_file_name(self.name)
        check_file_name(self.upload)

    def keys(self, folder: str) -> list[str]:
        """Return the keys of its objects, in order."""
        key = f"{folder}/{self.upload}/{self.name}"
        if not self.bucket_bytes:
            return [key]
        return [_bucket(key, n) for n in range(-(-self.size_bytes // self.bucket_bytes))]


class S3FolderStore(FolderStore):
    """A store of whole folders below a prefix of a bucket.

    Args:
        uri: `s3://bucket/prefix`.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._blobs = S3Blobs(uri)

    def names(self) -> list[str]:
        parts = (name.split("/") for name in self._blobs.names())
        return sorted(part[0] for part in parts if part[1:] == [_FOLDER])

    def read(self, name: str, file: str) -> bytes:
        for found in self._files(self._look(name)):
            if found.name == file:
                buckets = [self._blobs.read(key) for key in found.keys(name)]
                if None not in buckets:
                    return b"".join(bucket for bucket in buckets if bucket is not None)
        raise FileNotFoundError(f"no {file} in {self._uri}/{name}")

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """Provide a temporary copy, which is removed with the context."""
        with TemporaryDirectory(prefix="rollart-") as temporary:
            self._download(name, self._look(name), Path(temporary))
            yield Path(temporary)

    def local_path(self, name: str) -> Path:
        """Return the path of a copy that all processes of this user share."""
        there = self._look(name)
        copy = cache_folder("folders") / hashlib.sha256(there.data).hexdigest()[:32]
        if not copy.is_dir():
            self._copy(name, there, copy)
        touch(copy)
        return copy

    def _copy(self, name: str, there: Tagged, copy: Path) -> None:
        """Download to a path that other processes may fill too; the first copy remains."""
        copy.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=copy.parent) as temporary:
            folder = Path(temporary) / "folder"
            folder.mkdir()
            self._download(name, there, folder)
            try:
                folder.rename(copy)
            except OSError:
                if not copy.is_dir():
                    raise

    def put(self, name: str, files: Files, *, lasting: bool = True) -> bool:
        before, upload = self._blobs.look(f"{name}/{_FOLDER}"), uuid4().hex
        said = {"upload": upload, "bucket_bytes": BUCKET_BYTES}
        self._blobs.write(f"{name}/{_ARRIVING}", json.dumps(said).encode())
        made = [self._put_buckets(name, upload, file, content) for file, content in files]
        content = json.dumps({"files": [asdict(file) for file in made]}, indent=1).encode()
        if before is None:
            tag = self._blobs.claim(f"{name}/{_FOLDER}", content)
        else:
            tag = self._blobs.swap(f"{name}/{_FOLDER}", content, before.tag)
        self._remove_uploads(name, lambda other: (other == upload) == (tag is None))
        return tag is not None

    def _put_buckets(
        self, name: str, upload: str, file: str, content: Iterable[memoryview]
    ) -> _File:
        digest, size, running = hashlib.sha256(), 0, deque[Future[None]]()

        def put(number: int, bucket: memoryview) -> None:
            self._blobs.write(_bucket(f"{name}/{upload}/{file}", number), bucket)
            announce()

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3-folder") as threads:
            buffers = (memoryview(bytearray(BUCKET_BYTES)) for _ in repeat(None))
            for number, bucket in enumerate(pack(content, buffers)):
                if len(running) == _AT_ONCE:
                    running.popleft().result()
                running.append(threads.submit(put, number, bucket))
                digest.update(bucket)
                size += len(bucket)
            for each in running:
                each.result()
        return _File(file, upload, size, digest.hexdigest(), BUCKET_BYTES)

    def arriving(self, name: str) -> ArrivingFolder | None:
        said = self._blobs.look(f"{name}/{_ARRIVING}")
        if said is None:
            return None
        return _ArrivingUpload(self._blobs, name, **json.loads(said.data))

    def remove(self, name: str) -> None:
        self._blobs.remove(f"{name}/{_FOLDER}")
        S3Blobs(f"{self._uri}/{name}").clear()

    @contextmanager
    def writing(self, term: FolderTerm) -> Iterator[None]:
        """Do nothing: conditional puts exclude concurrent writers on all machines."""
        yield

    def clear_leftovers(self, term: FolderTerm) -> None:
        keys = [(key.split("/")[0], key) for key in self._blobs.names() if "/" in key]
        whole = {name for name, key in keys if key == f"{name}/{_FOLDER}"}
        left = [key for name, key in keys if name not in whole and term_of(name) <= term]
        self._blobs.remove_all(left)

    def workshop(self, name: str) -> Path:
        place = hashlib.sha256(f"{self._uri}/{name}".encode()).hexdigest()[:32]
        return cache_folder("workshop") / place / name

    def finish(self, name: str) -> None:
        made = self.workshop(name)
        files = ((path.name, _pieces(path)) for path in sorted(made.iterdir()) if path.is_file())
        if not self.put(name, files):
            raise OSError(f"another process put {self._uri}/{name} at this very moment")
        shutil.rmtree(made.parent)

    def _remove_uploads(self, name: str, unwanted: Callable[[str], bool]) -> None:
        """Remove this upload if it lost to a concurrent one, else the uploads that it replaces."""
        there = S3Blobs(f"{self._uri}/{name}")
        found = [other for other in there.names() if other != _FOLDER]
        there.remove_all([other for other in found if unwanted(other.split("/")[0])])

    def _look(self, name: str) -> Tagged:
        there = self._blobs.look(f"{name}/{_FOLDER}")
        if there is None:
            raise FileNotFoundError(f"there is no whole folder {self._uri}/{name}")
        return there

    def _files(self, there: Tagged) -> list[_File]:
        try:
            return [_File(**each) for each in json.loads(there.data)["files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{_FOLDER} is damaged: {files.one_line(error)}") from error

    def _download(self, name: str, there: Tagged, folder: Path) -> None:
        def fetch(file: _File) -> None:
            path, keys = folder / file.name, file.keys(name)
            if file.bucket_bytes:
                self._join(keys, file.bucket_bytes, path)
            else:
                self._blobs.download(keys[0], path)
            if _described(path, file.upload, file.bucket_bytes) != file:
                raise OSError(f"{file.name} in {self._uri}/{name} is damaged: its checksum differs")

        _side_by_side(fetch, self._files(there))

    def _join(self, keys: list[str], bucket_bytes: int, path: Path) -> None:
        """Download the buckets of a file to their places in it."""
        with path.open("wb") as stream:

            def fetch(number: int) -> None:
                bucket = self._blobs.read(keys[number])
                os.pwrite(stream.fileno(), bucket or b"", number * bucket_bytes)

            _side_by_side(fetch, range(len(keys)))


class _ArrivingUpload(ArrivingFolder):
    """The buckets of one upload."""

    def __init__(self, blobs: S3Blobs, name: str, upload: str, bucket_bytes: int) -> None:
        self.bucket_bytes = bucket_bytes
        self._blobs = blobs
        self._name = name
        self._upload = upload

    def content(self, file: str) -> bytes | None:
        return self._read(file, 0)

    def bucket(self, file: str, number: int, into: memoryview) -> bool:
        found = self._read(file, number)
        if found is not None:
            into[:] = found
        return found is not None

    def _read(self, file: str, number: int) -> bytes | None:
        found = self._blobs.read(_bucket(f"{self._name}/{self._upload}/{file}", number))
        if found is None:
            self.whole()
        return found

    def whole(self) -> bool:
        arrives = self._names_upload(_ARRIVING)
        if self._names_upload(_FOLDER):
            return True
        if not arrives:
            raise FileNotFoundError(f"upload {self._upload} of {self._name} was given up")
        return False

    def _names_upload(self, file: str) -> bool:
        return self._upload.encode() in (self._blobs.read(f"{self._name}/{file}") or b"")


def _bucket(key: str, number: int) -> str:
    return f"{key}/{number:05d}"


def _pieces(path: Path) -> Iterator[memoryview]:
    """Yield the content of a file."""
    with path.open("rb") as stream:
        while piece := stream.read(BUCKET_BYTES):
            yield memoryview(piece)


def _described(path: Path, upload: str, bucket_bytes: int = 0) -> _File:
    with path.open("rb") as stream:
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    return _File(path.name, upload, path.stat().st_size, checksum, bucket_bytes)


def _side_by_side(work: Callable[[T], None], items: Iterable[T]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3-folder") as threads:
        for done in [threads.submit(work, item) for item in items]:
            done.result()

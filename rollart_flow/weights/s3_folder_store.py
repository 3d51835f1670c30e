"""Whole folders in S3: files under keys that are never rewritten, listed by an object written last.

    <place>/<name>/folder.json            which files it has: key, size and checksum of each
    <place>/<name>/<upload>/<file>        one file, of one upload

The invariant: `folder.json` appears after the files that it names, by a conditional put, so a
reader finds all files of one upload or none, and of two concurrent writers one is notified.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from rollart_flow.store import files
from rollart_flow.store.cache import cache_folder, touch
from rollart_flow.store.s3.blobs import S3Blobs, Tagged
from rollart_flow.weights.folders import Fill, FolderStore

_FOLDER = "folder.json"
_AT_ONCE = 4
"""Number of files of a folder transferred at a time; each file is also split into parts."""


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a folder as listed in `folder.json`."""

    name: str
    upload: str
    size_bytes: int
    sha256: str


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
                data = self._blobs.read(_key(name, found))
                if data is not None:
                    return data
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

    def put(self, name: str, fill: Fill) -> bool:
        with TemporaryDirectory(prefix="rollart-") as temporary:
            fill(Path(temporary))
            return self._upload(name, Path(temporary))

    def remove(self, name: str) -> None:
        self._blobs.remove(f"{name}/{_FOLDER}")
        S3Blobs(f"{self._uri}/{name}").clear()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Do nothing: conditional puts exclude concurrent writers on all machines."""
        yield

    def workshop(self, name: str) -> Path:
        place = hashlib.sha256(f"{self._uri}/{name}".encode()).hexdigest()[:32]
        return cache_folder("workshop") / place / name

    def finish(self, name: str) -> None:
        made = self.workshop(name)
        if not self._upload(name, made):
            raise OSError(f"another process put {self._uri}/{name} at this very moment")
        shutil.rmtree(made.parent)

    def _upload(self, name: str, folder: Path) -> bool:
        before = self._blobs.look(f"{name}/{_FOLDER}")
        upload = uuid4().hex
        made = [_described(path, upload) for path in sorted(folder.iterdir()) if path.is_file()]
        _side_by_side(lambda file: self._blobs.upload(_key(name, file), folder / file.name), made)
        said = json.dumps({"files": [asdict(file) for file in made]}, indent=1).encode()
        if before is None:
            tag = self._blobs.claim(f"{name}/{_FOLDER}", said)
        else:
            tag = self._blobs.swap(f"{name}/{_FOLDER}", said, before.tag)
        self._remove_uploads(name, lambda other: (other == upload) == (tag is None))
        return tag is not None

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
            self._blobs.download(_key(name, file), folder / file.name)
            if _described(folder / file.name, file.upload) != file:
                raise OSError(f"{file.name} in {self._uri}/{name} is damaged: its checksum differs")

        _side_by_side(fetch, self._files(there))


def _key(name: str, file: _File) -> str:
    return f"{name}/{file.upload}/{file.name}"


def _described(path: Path, upload: str) -> _File:
    with path.open("rb") as stream:
        checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    return _File(path.name, upload, path.stat().st_size, checksum)


def _side_by_side(work: Callable[[_File], None], made: Iterable[_File]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="s3-folder") as threads:
        for done in [threads.submit(work, file) for file in made]:
            done.result()

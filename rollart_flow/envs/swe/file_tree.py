"""The files of a task as a mapping in memory, read from folders, archives and boxes.

Trees that come from a box are only ever read as a tar archive in memory: no file of an agent is
written to the host. Only regular files count; links, devices and sockets are left out.

Invariant: paths are relative, normal, and never inside `.git` or a cache of Python.
"""

import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from rollart_flow.errors import SettingsError

MAX_TREE_BYTES = 256 << 20
"""Largest size of all files of a tree together [bytes]."""
MAX_TREE_FILES = 50_000
_LEFT_OUT = frozenset({
    ".git", ".hg", ".svn", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".tox",
    ".venv", "node_modules",
})  # fmt: skip
_LEFT_OUT_SUFFIXES = (".pyc", ".pyo")


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A regular file."""

    data: bytes
    executable: bool = False


FileTree: TypeAlias = Mapping[str, TreeFile]
"""Files by their path, with "/" between its parts."""


@dataclass(frozen=True, slots=True)
class TreeReading:
    """A tree, and what was found beside its files."""

    files: dict[str, TreeFile]
    odd: tuple[str, ...] = ()
    """Paths of links, devices and sockets, of names that are no text, and of files that share
    their contents with another one."""


def is_kept_path(path: str) -> bool:
    """Whether a path belongs to a tree: normal, relative, and no part of a cache or of git."""
    parts = path.split("/")
    return (
        all(part not in ("", ".", "..") for part in parts)
        and not _LEFT_OUT.intersection(parts)
        and not path.endswith(_LEFT_OUT_SUFFIXES)
        and not any(character in path for character in "\0\n\r\t\\")
        and path.isprintable()
    )


def read_tar(source: bytes | Path) -> TreeReading:
    """Return the files of a tar archive, compressed or not.

    Raises:
        SettingsError: it is no tar archive, or exceeds the limits of a tree.
    """
    try:
        if isinstance(source, bytes):
            with tarfile.open(fileobj=io.BytesIO(source), mode="r:") as archive:
                return _members(archive)
        with tarfile.open(source) as archive:
            return _members(archive)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SettingsError(f"{_named(source)} is no tar archive: {error}") from error


def read_source(path: Path) -> TreeReading:
    """Return the files of a folder, or of a `.tar.gz`, `.tar` or `.zip` archive.

    An archive with one top folder, such as a source archive of PyPI, is read from that folder on.

    Raises:
        SettingsError: there is nothing of these at the path, or it exceeds the limits of a tree.
    """
    if path.is_dir():
        return _walk(path)
    if not path.is_file():
        raise SettingsError(f"{path} is neither a folder nor an archive with source code")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            reading = _zip_members(archive)
    else:
        reading = read_tar(path)
    tops = {name.partition("/")[0] for name in reading.files}
    if len(tops) != 1 or not all("/" in name for name in reading.files):
        return reading
    files = {name.partition("/")[2]: file for name, file in reading.files.items()}
    return TreeReading(files, reading.odd)


def pack_tar(tree: FileTree) -> bytes:
    """Return a tree as an uncompressed tar archive; equal trees give equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree):
            file = tree[path]
            member = tarfile.TarInfo(path)
            member.size = len(file.data)
            member.mode = 0o755 if file.executable else 0o644
            archive.addfile(member, io.BytesIO(file.data))
    return buffer.getvalue()


def tree_digest(tree: FileTree) -> str:
    """Return the SHA-256 of a tree's paths, contents and modes, as hex digits."""
    digest = hashlib.sha256()
    for path in sorted(tree):
        file = tree[path]
        inner = hashlib.sha256(file.data).hexdigest()
        digest.update(f"{path}\0{int(file.executable)}{inner}\n".encode())
    return digest.hexdigest()


class _Collector:
    """Files that were read so far; refuses more than the limits of a tree."""

    def __init__(self) -> None:
        self.files: dict[str, TreeFile] = {}
        self.odd: list[str] = []
        self._bytes = 0

    def announce(self, size: int) -> None:
        """Count a file before it is read."""
        self._bytes += size
        if self._bytes > MAX_TREE_BYTES or len(self.files) >= MAX_TREE_FILES:
            raise SettingsError(
                f"the files exceed {MAX_TREE_BYTES >> 20} MiB or {MAX_TREE_FILES} in number"
            )

    def reading(self) -> TreeReading:
        return TreeReading(self.files, tuple(self.odd))


def _members(archive: tarfile.TarFile) -> TreeReading:
    found = _Collector()
    for member in archive:
        path = str(PurePosixPath(member.name))
        if member.isdir() or path == ".":
            continue
        if not is_kept_path(path):
            if not _LEFT_OUT.intersection(path.split("/")) and not path.endswith(
                _LEFT_OUT_SUFFIXES
            ):
                found.odd.append(ascii(path))
            continue
        if not member.isfile():
            found.odd.append(path)
            found.files.pop(path, None)
            continue
        found.announce(member.size)
        opened: IO[bytes] | None = archive.extractfile(member)
        data = opened.read() if opened is not None else b""
        found.files[path] = TreeFile(data, bool(member.mode & 0o100))
    return found.reading()


def _zip_members(archive: zipfile.ZipFile) -> TreeReading:
    found = _Collector()
    for member in archive.infolist():
        path = str(PurePosixPath(member.filename))
        if member.is_dir() or not is_kept_path(path):
            continue
        mode = member.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            found.odd.append(path)
            continue
        found.announce(member.file_size)
        found.files[path] = TreeFile(archive.read(member), bool(mode & 0o100))
    return found.reading()


def _walk(folder: Path) -> TreeReading:
    found = _Collector()
    for path in _entries(folder):
        name = path.relative_to(folder).as_posix()
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or not is_kept_path(name):
            found.odd.append(ascii(name))
            continue
        found.announce(about.st_size)
        found.files[name] = TreeFile(path.read_bytes(), bool(about.st_mode & 0o100))
    return found.reading()


def _entries(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(names):
            if not name.endswith(_LEFT_OUT_SUFFIXES):
                yield Path(root, name)


def _named(source: bytes | Path) -> str:
    return "the snapshot of a box" if isinstance(source, bytes) else str(source)

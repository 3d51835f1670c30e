"""Tar archives of trees: read with every entry checked, and written for other nodes.

Read are plain archives and those that gzip, bzip2, xz, zstd or lz4 compressed, told by their first
bytes. Devices, pipes and sockets below `/dev` are left out, since every box has a `/dev` of its
own; elsewhere they are refused.
"""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from rollart_flow.errors import ImageError
from rollart_flow.sandbox.images.tree import TreeWriter

PIECE_BYTES = 8 << 20
"""Size of the pieces in which an archive is sent and stored [bytes]."""
_LONGEST_HEADER_BYTES = 1 << 20
_HEADERS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_ARROW = {b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
DAMAGE = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
"""Errors that a damaged archive raises while it is read, beside OSError."""


class _Entry(tarfile.TarInfo):
    """An entry whose extended headers, which are read into memory, are bounded."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Entry":
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _HEADERS and entry.size > _LONGEST_HEADER_BYTES:
            raise ImageError(f"image: an entry has a header of {entry.size} bytes")
        return entry


@contextmanager
def decompressed(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the contents of a file that can be sought, decompressed if it is compressed."""
    start = file.read(6)
    file.seek(0)
    with ExitStack() as opened:
        if start.startswith(b"\x1f\x8b"):
            yield cast("BinaryIO", opened.enter_context(gzip.GzipFile(fileobj=file)))
        elif start.startswith(b"BZh"):
            yield cast("BinaryIO", opened.enter_context(bz2.BZ2File(file)))
        elif start.startswith(b"\xfd7zXZ\x00"):
            yield cast("BinaryIO", opened.enter_context(lzma.LZMAFile(file)))
        elif codec := _ARROW.get(start[:4]):
            yield cast("BinaryIO", _ArrowReader(_arrow_input(file, codec)))
        else:
            yield file


def unpack(stream: BinaryIO, writer: TreeWriter, *, layer: bool = False) -> None:
    """Write the entries of a tar stream.

    Args:
        stream: the archive, read once from its beginning to its end.
        writer: the tree.
        layer: whether the archive is a layer over what the tree has: names with `.wh.` remove
            entries of the layers below it.

    Raises:
        ImageError: an entry is refused, or the archive is damaged.
        OSError: the disk fails or is full.
    """
    added: set[str] = set()
    try:
        with tarfile.open(
            fileobj=stream, mode="r|", tarinfo=_Entry, errors="surrogateescape"
        ) as archive:
            for entry in archive:
                path = "/".join(part for part in entry.name.split("/") if part not in ("", "."))
                if layer and path.rpartition("/")[2].startswith(_WHITEOUT):
                    _apply_whiteout(writer, path, added)
                    continue
                _write(archive, entry, path, writer)
                added.add(path)
    except ImageError:
        raise
    except DAMAGE as error:
        raise ImageError(f"image: the archive is damaged: {error}") from error


def _apply_whiteout(writer: TreeWriter, path: str, added: set[str]) -> None:
    """Remove what a layer hides of those below it, but nothing of its own."""
    folder, _, name = path.rpartition("/")
    hidden = writer.names(folder) if name == _OPAQUE else [name.removeprefix(_WHITEOUT)]
    for child in hidden:
        if child in ("", ".", ".."):
            raise ImageError(f"image: the whiteout {path[:200]!r} names no file")
        whole = f"{folder}/{child}" if folder else child
        _remove_others(writer, whole, added)


def _remove_others(writer: TreeWriter, path: str, added: set[str]) -> None:
    """Remove a path, except for what the same layer has added at it or below it."""
    if not any(own == path or own.startswith(path + "/") for own in added):
        writer.remove(path)
        return
    for child in writer.names(path):
        _remove_others(writer, f"{path}/{child}", added)


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str, writer: TreeWriter) -> None:
    if entry.isdir():
        writer.folder(path, entry.mode)
    elif entry.issym():
        writer.symlink(path, entry.linkname)
    elif entry.islnk():
        writer.hard_link(path, entry.linkname)
    elif entry.isreg():
        content = archive.extractfile(entry)
        assert content is not None
        writer.file(path, cast("BinaryIO", content), entry.mode, entry.mtime)
    elif not path.startswith("dev/"):
        raise ImageError(f"image: {path[:200]!r} is a device, a pipe or of an unknown kind")


def pack(root: Path) -> Iterator[bytes]:
    """Yield a tree as a tar archive compressed with zstd, in pieces of about `PIECE_BYTES`.

    Raises:
        OSError: an entry cannot be read.
    """
    import pyarrow as pa

    pieces = _Pieces()
    with (
        pa.CompressedOutputStream(pa.PythonFile(pieces, "w"), "zstd") as out,
        tarfile.open(
            fileobj=cast("Any", out), mode="w|", format=tarfile.PAX_FORMAT, errors="surrogateescape"
        ) as archive,
    ):
        stream = cast("BinaryIO", archive.fileobj)
        for path in _walk(root):
            entry = archive.gettarinfo(root / path, arcname=path)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            archive.addfile(entry)  # the header, after which the content is written in parts
            if entry.isreg():
                for part in _content(root / path, entry.size):
                    stream.write(part)
                    if pieces.size >= PIECE_BYTES:
                        yield pieces.take()
    yield pieces.take()


def unpack_pieces(pieces: Iterator[bytes], writer: TreeWriter) -> None:
    """Write the tree that `pack` sent.

    Raises:
        ImageError: an entry is refused, or the archive is damaged.
        OSError: the disk fails or is full, or the pieces end early.
    """
    source = io.BufferedReader(_Joined(pieces))
    stream = _ArrowReader(_arrow_input(cast("BinaryIO", source), "zstd"))
    unpack(cast("BinaryIO", stream), writer)


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Yield the contents of a file, and zeros up to the end of its last block."""
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            yield part
    yield bytes(-size % tarfile.BLOCKSIZE)


def _walk(root: Path) -> Iterator[str]:
    """Yield the paths below a folder, parents first, in a fixed order."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        inside = os.path.relpath(folder, root)
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        real = [name for name in folders if name not in links]
        for name in (*real, *sorted([*names, *links])):
            yield os.path.normpath(os.path.join(inside, name))


def _arrow_input(file: BinaryIO, codec: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)


class _ArrowReader(io.RawIOBase):
    """Reads a stream of Arrow; damage is a ValueError, as in other archives."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            return bytes(self._stream.read(size if size >= 0 else None))
        except OSError as error:
            if error.errno is None:
                raise ValueError(str(error)) from error
            raise


class _Joined(io.RawIOBase):
    """Reads pieces as one stream."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class _Pieces(io.RawIOBase):
    """Collects what is written."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self.size += len(part)
        return len(part)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        joined = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return joined

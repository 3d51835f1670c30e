"""Files and folders of a local file system that appear and vanish as a whole.

They are filled under a hidden name next to their target, flushed to disk and renamed; a crash
leaves at most a hidden leftover, which `clear_leftovers` removes.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from rollart_flow.weights.following import announce
from rollart_flow.weights.terms import FolderTerm, term_of

LEFTOVER = ".leftover-"
"""Beginning of the hidden names, before the name of the target and an identifier."""
Fill = Callable[[Path], None]
"""A function that writes files into the given empty folder."""


def put_folder(target: Path, fill: Fill, *, lasting: bool = True) -> None:
    """Create or replace `target` with the files that `fill` writes into the folder it is given.

    A replaced folder is moved aside first; a crash between the two renames leaves no folder. If it
    need not be `lasting`, a power failure may damage its files.

    Raises:
        OSError: it cannot be written (full disk, no permission); `target` is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.parent / f"{LEFTOVER}{target.name}-{uuid4().hex}"
    hidden.mkdir()
    try:
        fill(hidden)
        if lasting:
            flush_all(hidden)
        if target.exists():
            remove_folder(target)
        hidden.rename(target)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    announce()
    if lasting:
        flush(target.parent)


def put_file(target: Path, fill: Callable[[Path], None]) -> None:
    """Create or atomically replace `target` with the file that `fill` writes at the given path.

    Raises:
        OSError: it cannot be written (full disk, no permission); `target` is as it was.
    """
    hidden = target.with_name(f"{LEFTOVER}{target.name}-{uuid4().hex}")
    try:
        fill(hidden)
        flush(hidden)
        hidden.replace(target)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    flush(target.parent)


def remove_folder(target: Path) -> None:
    """Remove a folder atomically: readers find all of it or nothing.

    Raises:
        OSError: the folder cannot be removed.
    """
    hidden = target.parent / f"{LEFTOVER}{target.name}-{uuid4().hex}"
    target.rename(hidden)
    shutil.rmtree(hidden)


def clear_leftovers(parent: Path, term: FolderTerm | None = None) -> None:
    """Remove the leftovers of a crash. Call this only while no other process writes.

    Args:
        parent: folder of the leftovers.
        term: remove only those of numbered folders of this term and of those before it, whose
            drivers may write still, and then fail.
    """
    for path in parent.glob(f"{LEFTOVER}*"):
        name = path.name.removeprefix(LEFTOVER).rpartition("-")[0]
        if term is not None and term_of(name) > term:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Force a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_all(folder: Path) -> None:
    """Force a folder and its files to disk."""
    for path in folder.iterdir():
        flush(path)
    flush(folder)


@contextmanager
def locked(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Hold an exclusive write lock of a folder; the kernel frees it when the holder dies.

    Raises:
        OSError: the folder cannot be created or locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

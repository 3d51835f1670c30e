"""Atomic creation and removal of folders and files on a local file system.

They are filled under a hidden name next to their target, flushed to disk and renamed; a crash
leaves at most a hidden leftover, which `clear_leftovers` removes. The invariant: under its own name
a folder is never missing a file, and no file is partially written.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

_LEFTOVER = ".leftover-"


def put_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Create or replace `target` with the files that `fill` writes into the folder it is given.

    A replaced folder is moved aside first; a crash between the two renames leaves no folder.

    Raises:
        OSError: it cannot be written (full disk, no permission); `target` is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.parent / f"{_LEFTOVER}{target.name}-{uuid4().hex}"
    hidden.mkdir()
    try:
        fill(hidden)
        for path in hidden.iterdir():
            flush(path)
        flush(hidden)
        if target.exists():
            remove_folder(target)
        hidden.rename(target)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    flush(target.parent)


def put_file(target: Path, fill: Callable[[Path], None]) -> None:
    """Create or atomically replace `target` with the file that `fill` writes at the given path.

    Raises:
        OSError: it cannot be written (full disk, no permission); `target` is as it was.
    """
    hidden = target.with_name(f"{_LEFTOVER}{target.name}-{uuid4().hex}")
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
    hidden = target.parent / f"{_LEFTOVER}{target.name}-{uuid4().hex}"
    target.rename(hidden)
    shutil.rmtree(hidden)


def clear_leftovers(parent: Path) -> None:
    """Remove the leftovers of a crash. Call this only while no other process writes."""
    for path in parent.glob(f"{_LEFTOVER}*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def flush(path: Path) -> None:
    """Force a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the exclusive write lock of a folder; the kernel frees it when the holder dies.

    Raises:
        OSError: the folder cannot be created or locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""Locks between threads and processes, which the kernel frees when their holder dies.

A lock is a file that is locked with flock. The file of a lock may be removed by whoever holds it
exclusively; a lock that was taken on a removed file is taken again.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rollart_flow.blocked import blocking


def take(path: Path, *, shared: bool = False, wait: bool = True) -> int | None:
    """Lock a file, which is made if it is missing, and return its descriptor.

    Args:
        path: the file; its folder exists.
        shared: whether others may hold it shared at the same time.
        wait: whether to wait for the present holders; if not, None says that there are some.
    """
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with blocking(f"lock {path.name}"):
                fcntl.flock(descriptor, kind)
            if _is_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def free(descriptor: int) -> None:
    """Give a lock back."""
    os.close(descriptor)


def free_and_remove(descriptor: int, path: Path) -> None:
    """Give back a lock that is held exclusively, and remove its file."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock exclusively for the duration of the block, and keep its file."""
    descriptor = take(path)
    assert descriptor is not None
    try:
        yield
    finally:
        free(descriptor)


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether the descriptor is still that of the file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False

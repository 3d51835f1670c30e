"""Disks that are full or do not answer: a small tmpfs, and a frozen file system in a file."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.matrix import CannotInjectError


def check_root(command: str) -> None:
    """Check that this user can run a command of the system that takes root.

    Raises:
        CannotInjectError: the user is another, or the command is missing.
    """
    if os.geteuid() != 0 or shutil.which(command) is None:
        raise CannotInjectError(f"{command} takes root and its package")


def _run(*command: str | Path) -> None:
    """Run a command of the system.

    Raises:
        CannotInjectError: this user cannot run it here.
    """
    check_root(str(command[0]))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotInjectError(f"{command[0]}: {done.stderr.strip()}")


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A file system of this size, mounted at a folder."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "chaos", folder)
    try:
        yield folder
    finally:
        _run("umount", "-l", folder)


@contextmanager
def freezable_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A file system in a file, mounted at a folder, which `frozen` can freeze."""
    image = folder.with_suffix(".img")
    with image.open("wb") as stream:
        stream.truncate(mib << 20)
    folder.mkdir()
    _run("mkfs.ext4", "-q", image)
    _run("mount", "-o", "loop", image, folder)
    try:
        yield folder
    finally:
        _run("umount", "-l", folder)


@contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Let all writes to a file system wait for the duration of the context."""
    _run("fsfreeze", "--freeze", folder)
    try:
        yield
    finally:
        _run("fsfreeze", "--unfreeze", folder)

"""What this machine keeps of runs in S3: copies of files that a process needs as files.

A copy is named by what it holds, so that it is never stale and any number of processes may make it
at once. What nobody asked for in a day may be removed (`rm -r ~/.cache/rollart_flow` always may).
"""

import hashlib
import os
import shutil
import time
from pathlib import Path

from rollart_flow.errors import StoreError
from rollart_flow.store import files

KEPT_S = 24 * 3600.0
"""Time that a copy stays at least after it was asked for."""
_VARIABLE = "XDG_CACHE_HOME"


def cache_folder(kind: str) -> Path:
    """The folder of this user for copies of one kind; it may not exist yet."""
    base = os.environ.get(_VARIABLE) or Path.home() / ".cache"
    return Path(base) / "rollart_flow" / kind


def local_file(uri: str) -> Path:
    """A file of a store as a file of this machine: itself, or a copy of it.

    Raises:
        StoreError: it is not there, or cannot be read.
    """
    if not files.is_remote(uri):
        return Path(uri)
    data = files.read(uri)
    if data is None:
        raise StoreError(f"there is no {uri}")
    folder = cache_folder("files") / hashlib.sha256(data).hexdigest()[:32]
    copy = folder / files.split(uri)[1]
    if not copy.is_file():
        files.write(str(copy), data)
    touch(folder)
    return copy


def touch(copy: Path) -> None:
    """Say that a copy is wanted, and remove those beside it that nobody has wanted for long."""
    os.utime(copy)
    oldest = time.time() - KEPT_S
    for other in copy.parent.iterdir():
        try:
            if other.stat().st_mtime < oldest:
                shutil.rmtree(other, ignore_errors=True)
        except FileNotFoundError:  # another process was faster
            continue

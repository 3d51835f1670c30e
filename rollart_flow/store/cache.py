"""Local cache of files of runs in S3, for processes that need them as local files.

A copy is named by the hash of its contents, so that it is never stale and any number of processes
may create it at once. A copy that has not been requested for a day may be removed;
`~/.cache/rollart_flow` may be deleted at any time.
"""

import hashlib
import os
import shutil
import time
from pathlib import Path

from rollart_flow.errors import StoreError
from rollart_flow.store import files

KEPT_S = 24 * 3600.0
"""Least time that a copy is kept after its last request [s]."""
_VARIABLE = "XDG_CACHE_HOME"


def cache_folder(kind: str) -> Path:
    """The user's cache folder for copies of one kind; it may not exist yet."""
    base = os.environ.get(_VARIABLE) or Path.home() / ".cache"
    return Path(base) / "rollart_flow" / kind


def local_file(uri: str) -> Path:
    """Local path of a file of a store: the file itself, or a copy of it.

    Raises:
        StoreError: the file does not exist, or cannot be read.
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
    """Mark a copy as used, and remove its siblings that were last used more than `KEPT_S` ago."""
    os.utime(copy)
    oldest = time.time() - KEPT_S
    for other in copy.parent.iterdir():
        try:
            if other.stat().st_mtime < oldest:
                shutil.rmtree(other, ignore_errors=True)
        except FileNotFoundError:  # another process was faster
            continue

"""Whose code a stored run carries: resume, fork and replay execute its `pipeline.py`.

The file is trusted if it belongs to this user and nobody else may write it; in S3, if this user's
machine recorded its text when it created the run. The user may agree to any other text, which is
recorded too. Invariant: a recorded text that was changed since is not trusted.
"""

import hashlib
import os
import stat
from pathlib import Path

from rollart_flow.store import files
from rollart_flow.store.layout import pipeline_uri, read_pipeline

_VARIABLE = "XDG_STATE_HOME"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_trusted(uri: str) -> bool:
    """Whether this user created the run at an address, or has agreed to its pipeline."""
    own = not files.is_remote(uri) and _owned(Path(pipeline_uri(uri)))
    return own or _record(uri).is_file()


def trust(uri: str) -> None:
    """Record that this user agrees to the pipeline of a run as it is now."""
    record = _record(uri)
    record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    record.touch(mode=0o600)


def _owned(path: Path) -> bool:
    """Whether a file belongs to this user, and no other user may write it."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return True  # there is nothing to execute
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def _record(uri: str) -> Path:
    base = os.environ.get(_VARIABLE) or Path.home() / ".local" / "state"
    text = "\0".join((uri, read_pipeline(uri)))
    return Path(base) / "rollart_flow" / "trusted" / hashlib.sha256(text.encode()).hexdigest()

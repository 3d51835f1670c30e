"""Paths of this machine at which something exported appears."""

import os
from pathlib import Path

from rollart_flow.errors import SettingsError
from rollart_flow.store import files


def new_place(to: str | os.PathLike[str], what: str) -> Path:
    """Return a path at which there is nothing yet.

    Args:
        to: the path.
        what: what to give if there is something, such as "folder for the model".

    Raises:
        SettingsError: it is on another machine, or there is something.
    """
    said = os.fspath(to)
    if files.is_remote(said):
        raise SettingsError(f"{said!r} is not on this machine; export to a folder and copy that")
    target = Path(said).expanduser()
    if target.exists() or target.is_symlink():
        raise SettingsError(f"{str(target)!r} exists; give a new {what}")
    return target

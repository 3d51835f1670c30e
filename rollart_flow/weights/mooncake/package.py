"""Where the optional package `mooncake` lies, and one line where what it needs does not.

Importing this module loads nothing of it.
"""

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollart_flow.errors import MissingExtraError

_MISSING = "weights='mooncake' needs mooncake; pip install rollart-flow[mooncake]"
LIBRARY = "libibverbs.so.1"
"""Of the system, for its programs too: Debian's libibverbs1."""


def missing_library() -> str:
    """What to do about the system's library that it needs; empty where that loads."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return f"{LIBRARY} cannot be loaded: apt install libibverbs1"
    return ""


def package_folder() -> Path:
    """Folder of the installed package, with the programs of its servers.

    Raises:
        MissingExtraError: it, or a library of the system that it needs, is not installed.
    """
    found = find_spec("mooncake")
    if found is None or not found.submodule_search_locations or find_spec("xxhash") is None:
        raise MissingExtraError(_MISSING)
    if missing := missing_library():
        raise MissingExtraError(f"weights='mooncake': {missing}")
    return Path(next(iter(found.submodule_search_locations)))


def load() -> Any:
    """The module `mooncake.store`; from then on this process hears of its errors only.

    Raises:
        MissingExtraError: it, or something that it needs, is not installed.
    """
    package_folder()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # it writes some twenty lines when it is opened
    try:
        import mooncake.store
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise MissingExtraError(f"mooncake cannot be loaded: {reason}") from error
    return mooncake.store

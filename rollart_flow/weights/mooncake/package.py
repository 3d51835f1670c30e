"""Location of the optional package `mooncake`, with one-line errors for missing dependencies.

Importing this module does not load the package.
"""

import ctypes
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollart_flow.errors import MissingExtraError

_MISSING = "weights='mooncake' needs mooncake; pip install rollart-flow[mooncake]"
LIBRARY = "libibverbs.so.1"
"""System library that the package and its programs need: Debian's libibverbs1."""


def missing_library() -> str:
    """Return how to install the required system library; empty if it loads."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return f"{LIBRARY} cannot be loaded: apt install libibverbs1"
    return ""


def package_folder() -> Path:
    """Return the folder of the installed package, with its server programs.

    Raises:
        MissingExtraError: the package, or a system library that it needs, is not installed.
    """
    found = find_spec("mooncake")
    if found is None or not found.submodule_search_locations or find_spec("xxhash") is None:
        raise MissingExtraError(_MISSING)
    if missing := missing_library():
        raise MissingExtraError(f"weights='mooncake': {missing}")
    return Path(next(iter(found.submodule_search_locations)))


def load() -> Any:
    """Load the module `mooncake.store` and limit its log output to errors.

    Raises:
        MissingExtraError: the package, or one of its dependencies, is not installed.
    """
    package_folder()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # it writes some twenty lines when it is opened
    try:
        import mooncake.store
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise MissingExtraError(f"mooncake cannot be loaded: {reason}") from error
    return mooncake.store

"""Where the optional package `mooncake` lies, and one line where it, or `xxhash`, does not.

Importing this module loads nothing of it.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollart_flow.errors import MissingExtraError

_MISSING = "weights='mooncake' needs mooncake; pip install rollart-flow[mooncake]"


def package_folder() -> Path:
    """Folder of the installed package, with the programs of its servers.

    Raises:
        MissingExtraError: it is not installed.
    """
    found = find_spec("mooncake")
    if found is None or not found.submodule_search_locations or find_spec("xxhash") is None:
        raise MissingExtraError(_MISSING)
    return Path(next(iter(found.submodule_search_locations)))


def load() -> Any:
    """The module `mooncake.store`; from then on this process hears of its errors only.

    Raises:
        MissingExtraError: it, or a library of the system that it needs, is not installed.
    """
    package_folder()
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # it writes some twenty lines when it is opened
    try:
        import mooncake.store
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise MissingExtraError(
            f"mooncake cannot be loaded ({reason}); install the system's libibverbs1"
        ) from error
    return mooncake.store

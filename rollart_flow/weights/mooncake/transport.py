"""The weight transport `mooncake`: versions in the memory of Mooncake servers.

Importing this module does not load the package `mooncake`; a missing package or system library is a
one-line error.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollart_flow.errors import MissingExtraError
from rollart_flow.registry import Requirement
from rollart_flow.store.files import is_remote
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.transport import (
    TransferEnds,
    TransportCapabilities,
    WeightServers,
    WeightTransport,
)

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


class MooncakeTransport(WeightTransport):
    """Versions in the memory of servers that the run starts, or of existing ones."""

    capabilities = TransportCapabilities(takes_address=True)
    requirements = (
        Requirement(
            "mooncake",
            ("mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda"),
            "mooncake",
            problem=lambda: missing_library(),
        ),
    )

    def check(self, ends: TransferEnds) -> None:
        package_folder()

    def start_servers(self, model_bytes: int, keep_versions: int) -> WeightServers:
        from rollart_flow.resources.nodes import reachable_host
        from rollart_flow.weights.mooncake.servers import MooncakeServers, segment_bytes

        return MooncakeServers(segment_bytes(model_bytes, keep_versions), host=reachable_host())

    def open(self, address: str, uri: str, on_disk: WeightStore) -> WeightStore:
        if not address:
            return on_disk
        from rollart_flow.weights.mooncake.store import MooncakeWeightStore
        from rollart_flow.weights.tiered import TieredWeightStore

        folder = uri if is_remote(uri) else str(Path(uri).absolute())
        run = f"{Path(folder).parent.name}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
        return TieredWeightStore(MooncakeWeightStore(address, run), on_disk)


TRANSPORT = MooncakeTransport()

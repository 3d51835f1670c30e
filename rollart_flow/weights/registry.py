"""Weight stores by the name that a pipeline uses."""

import hashlib
import re
from pathlib import Path

from rollart_flow.store.files import is_remote
from rollart_flow.validation import check_choice
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.broadcast.requirements import SENT, Sending
from rollart_flow.weights.broadcast.store import BroadcastWeightStore
from rollart_flow.weights.local import LocalWeightStore
from rollart_flow.weights.mooncake.package import package_folder
from rollart_flow.weights.mooncake.store import MooncakeWeightStore
from rollart_flow.weights.tiered import TieredWeightStore

WEIGHT_STORES = ("local", "mooncake", *SENT, "mooncake://HOST:PORT")
_NAMES = WEIGHT_STORES[:-1]
_AT_ADDRESS = re.compile(r"mooncake://([^/:\s]+:\d+)")


def check_weights(name: str, sending: Sending) -> None:
    """Refuse what no run on this machine can use.

    Args:
        name: of the store.
        sending: who would send and receive, where versions are sent rather than stored.

    Raises:
        SettingsError: no weight store has that name, or nothing can be sent so.
        MissingExtraError: its package is not installed.
    """
    if not _AT_ADDRESS.fullmatch(name):
        check_choice("train.weights", name, _NAMES)
    if name in SENT:
        sending.check(name)
    elif name != "local":
        package_folder()


def open_weights(name: str, uri: str) -> WeightStore:
    """The weight store that a pipeline names.

    Args:
        name: `local`, or `mooncake://HOST:PORT` with the address of its master; `mooncake` is what
            a run has kept on disk, since the rest ends with the run's servers; `nccl` and `ipc`
            send what is published, and read what was kept.
        uri: the run's folder of weights.

    Raises:
        SettingsError: no weight store has that name.
    """
    kept = LocalWeightStore(uri)
    if (address := _AT_ADDRESS.fullmatch(name)) is None:
        check_choice("train.weights", name, _NAMES)
        return TieredWeightStore(BroadcastWeightStore(name, uri), kept) if name in SENT else kept
    folder = uri if is_remote(uri) else str(Path(uri).absolute())
    run = f"{Path(folder).parent.name}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    return TieredWeightStore(MooncakeWeightStore(address[1], run), kept)


def kept_weights(uri: str) -> WeightStore:
    """Versions of a run that are on disk, whatever carries the others to its engines."""
    return LocalWeightStore(uri)

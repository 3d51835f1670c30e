"""Registry of weight stores by the name that a pipeline uses."""

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
    """Reject a weight store that no run on this machine can use.

    Args:
        name: name of the store.
        sending: the sender and receivers, for stores that send versions instead of storing them.

    Raises:
        SettingsError: no weight store has that name, or it cannot send in this pipeline.
        MissingExtraError: its package is not installed.
    """
    if not _AT_ADDRESS.fullmatch(name):
        check_choice("train.weights", name, _NAMES)
    if name in SENT:
        sending.check(name)
    elif name != "local":
        package_folder()


def open_weights(name: str, uri: str) -> WeightStore:
    """Open the weight store that a pipeline names.

    Args:
        name: `local`, or `mooncake://HOST:PORT` with the address of its master; `mooncake` opens
        only the versions kept on disk, since the others end with the run's servers; `nccl` and
        `ipc` send published versions and read the versions kept on disk.
        uri: the run's weights folder.

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
    """Open the versions of a run that are on disk, regardless of the store that carries the
    others.
    """
    return LocalWeightStore(uri)

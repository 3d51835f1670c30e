"""Weight stores by the name that a pipeline uses."""

import hashlib
import re
from pathlib import Path

from rollart_flow.algorithms.checks import check_choice
from rollart_flow.weights.base import WeightStore
from rollart_flow.weights.local import LocalWeightStore
from rollart_flow.weights.mooncake.package import package_folder
from rollart_flow.weights.mooncake.store import MooncakeWeightStore
from rollart_flow.weights.tiered import TieredWeightStore

WEIGHT_STORES = ("local", "mooncake", "mooncake://HOST:PORT")
_AT_ADDRESS = re.compile(r"mooncake://([^/:\s]+:\d+)")


def check_weights(name: str) -> None:
    """Refuse what no run on this machine can use.

    Raises:
        SettingsError: no weight store has that name.
        MissingExtraError: its package is not installed.
    """
    if not _AT_ADDRESS.fullmatch(name):
        check_choice("train.weights", name, WEIGHT_STORES[:2])
    if name != "local":
        package_folder()


def open_weights(name: str, uri: str) -> WeightStore:
    """The weight store that a pipeline names.

    Args:
        name: `local`, or `mooncake://HOST:PORT` with the address of its master; `mooncake` is what
            a run has kept on disk, since the rest ends with the run's servers.
        uri: the run's folder of weights.

    Raises:
        SettingsError: no weight store has that name.
    """
    kept = LocalWeightStore(uri)
    if (address := _AT_ADDRESS.fullmatch(name)) is None:
        check_choice("train.weights", name, WEIGHT_STORES[:2])
        return kept
    folder = Path(uri).absolute()
    run = f"{folder.parent.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
    return TieredWeightStore(MooncakeWeightStore(address[1], run), kept)


def kept_weights(uri: str) -> WeightStore:
    """Versions of a run that are on disk, whatever carries the others to its engines."""
    return LocalWeightStore(uri)

"""Removal of old checkpoints of a run.

A step whose checkpoint is gone is recomputed from an earlier one, or from the start of the run, so
that every step can still be replayed and forked. The newest checkpoint always stays.
"""

from collections.abc import Callable

from rollart_flow.store import files
from rollart_flow.weights.folder_store import folder_store_at


def retain_checkpoints(checkpoints: str, newest: int | None, start: int) -> frozenset[int]:
    """Remove all checkpoints but the newest ones and that of the version the run started from.

    Args:
        checkpoints: address of the folder of checkpoints.
        newest: how many to keep; None keeps all.
        start: version that the run started from.

    Returns:
        Versions of the checkpoints that are there.

    Raises:
        StoreError: the checkpoints cannot be listed or removed.
    """

    def kept(versions: list[int]) -> list[int]:
        return versions if newest is None else [*versions[-newest:], start]

    return _keep(checkpoints, kept)


def remove_checkpoints_after(checkpoints: str, version: int) -> None:
    """Remove the checkpoints of steps after a version, which were saved but never recorded.

    Raises:
        StoreError: the checkpoints cannot be listed or removed.
    """
    _keep(checkpoints, lambda versions: [v for v in versions if v <= version])


def _keep(checkpoints: str, choose: Callable[[list[int]], list[int]]) -> frozenset[int]:
    """Remove all checkpoints but those chosen from their ascending versions."""
    with files.converting(f"cannot remove old checkpoints of {checkpoints}"):
        place = folder_store_at(checkpoints)
        names = {int(name): name for name in place.names() if name.isdigit()}
        versions = sorted(names)
        kept = frozenset(choose(versions))
        for version in versions:
            if version not in kept:
                place.remove(names[version])
    return kept

"""Names of the checkpoints of a run, and removal of old ones.

A step whose checkpoint is gone is recomputed from an earlier one, or from the start of the run, so
that every step can still be replayed and forked. The newest checkpoint always stays.
"""

from collections.abc import Callable

from rollart_flow.store import files
from rollart_flow.weights.folder_store import folder_store_at, names_in
from rollart_flow.weights.terms import FIRST, FolderTerm, folder_name, in_force, numbered


def checkpoint_folder(checkpoints: str, step: int, term: FolderTerm = FIRST) -> str:
    """Return the folder in which a driver saves the checkpoint of a step."""
    return f"{checkpoints}/{folder_name('', step, term)}"


def stored_checkpoints(checkpoints: str) -> dict[int, str]:
    """Return the folder of the checkpoint in force of each version, ascending.

    Raises:
        StoreError: they cannot be listed.
    """
    names = in_force(numbered(names_in(checkpoints), ""))
    return {version: files.join(checkpoints, name) for version, name in names.items()}


def retain_checkpoints(
    checkpoints: str, newest: int | None, start: int, term: FolderTerm = FIRST
) -> frozenset[int]:
    """Remove all checkpoints but the newest ones and that of the version the run started from.

    Args:
        checkpoints: address of the folder of checkpoints.
        newest: how many to keep; None keeps all.
        start: version that the run started from.
        term: driver that removes; what later ones saved stays.

    Returns:
        Versions of the checkpoints that are there.

    Raises:
        StoreError: the checkpoints cannot be listed or removed.
    """

    def kept(versions: list[int]) -> list[int]:
        return versions if newest is None else [*versions[-newest:], start]

    return _keep(checkpoints, kept, term)


def remove_checkpoints_after(checkpoints: str, version: int, term: FolderTerm = FIRST) -> None:
    """Remove the checkpoints of steps after a version, which were saved but never recorded, and
    what killed processes left of others.

    Raises:
        StoreError: the checkpoints cannot be listed or removed.
    """
    with files.converting(f"cannot remove leftovers in {checkpoints}"):
        folder_store_at(checkpoints).clear_leftovers(term)
    _keep(checkpoints, lambda versions: [v for v in versions if v <= version], term)


def _keep(
    checkpoints: str, choose: Callable[[list[int]], list[int]], term: FolderTerm
) -> frozenset[int]:
    """Remove all checkpoints but those chosen from their ascending versions."""
    with files.converting(f"cannot remove old checkpoints of {checkpoints}"):
        place = folder_store_at(checkpoints)
        there = numbered(place.names(), "")
        versions = list(in_force(there))
        kept = frozenset(choose(versions))
        for folder in there:
            if folder.number not in kept and folder.term <= term:
                place.remove(folder.name)
    return kept.intersection(versions)

"""The versions of a run whose weights are stored, and where each one is.

A version is in the weight store, in a checkpoint, or in both; the version that a run started from
is its policy folder too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from rollart_flow.errors import SettingsError
from rollart_flow.store import Run
from rollart_flow.store.layout import checkpoints_uri, policy_uri, weights_uri
from rollart_flow.trainers.checkpoint.retention import stored_checkpoints
from rollart_flow.weights.folder_store import opened

if TYPE_CHECKING:
    import torch

WEIGHTS, CHECKPOINT, POLICY = "weights", "checkpoint", "policy"


def stored_versions(run: Run) -> dict[int, str]:
    """Return the recorded versions that can be read, ascending, with where each one is stored.

    Raises:
        StoreError, WeightsError: the run's folders cannot be listed.
    """
    from rollart_flow.weights.local import LocalWeightStore

    parent = run.info.parent
    found = {0 if parent is None else parent.step: POLICY}
    found |= dict.fromkeys(stored_checkpoints(checkpoints_uri(run.uri)), CHECKPOINT)
    found |= dict.fromkeys(LocalWeightStore(weights_uri(run.uri)).versions(), WEIGHTS)
    recorded = set(run.weights.select(pl.col("policy_version")).collect().to_series())
    return {version: found[version] for version in sorted(found.keys() & recorded)}


def chosen_version(run: Run, version: int | None) -> tuple[int, str]:
    """Return a version, by default the newest one, and where it is stored.

    Raises:
        SettingsError: it is not stored; the message names the versions that are.
    """
    stored = stored_versions(run)
    if not stored:
        raise SettingsError(
            f"run {run.info.name} has no version to export yet; `rollart resume` continues it"
        )
    chosen = max(stored) if version is None else version
    if chosen not in stored:
        there = ", ".join(map(str, stored))
        raise SettingsError(
            f"run {run.info.name} holds no weights of version {chosen}; it holds {there} "
            "(train(keep_versions=N, keep_checkpoints=N) keeps more)"
        )
    return chosen, stored[chosen]


@contextmanager
def opened_weights(run: Run, version: int, place: str) -> Iterator[Mapping[str, torch.Tensor]]:
    """Provide the verified tensors of a stored version, each read when it is asked for.

    Raises:
        WeightsError, TrainerError, StoreError: they are damaged or cannot be read.
    """
    from rollart_flow.weights.local import LocalWeightStore

    if place == WEIGHTS:
        with LocalWeightStore(weights_uri(run.uri)).opened(version) as tensors:
            yield tensors
        return
    if place == POLICY:
        from rollart_flow.weights.tensor_files import TensorFile

        with opened(policy_uri(run.uri)) as folder:
            yield TensorFile(folder / "model.safetensors")
        return
    from rollart_flow.trainers.checkpoint.checkpoint import checkpoint_weights, is_checkpoint

    with opened(stored_checkpoints(checkpoints_uri(run.uri))[version]) as folder:
        if is_checkpoint(folder):
            yield checkpoint_weights(folder)
            return
        from rollart_flow.trainers.backends.sharded_checkpoint import sharded_weights

        yield sharded_weights(folder)

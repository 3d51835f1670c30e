"""The versions of a run whose weights are stored, and where each one is.

A version is in the weight store, in a checkpoint, or in both; the version that a run started from
is its policy folder too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from rollart_flow.errors import SettingsError
from rollart_flow.exporting.shards import WEIGHTS_FILE
from rollart_flow.models.lora import is_adapter
from rollart_flow.store import Run
from rollart_flow.store.layout import checkpoints_uri, policy_uri, weights_uri
from rollart_flow.trainers.checkpoint.retention import stored_checkpoints
from rollart_flow.weights.folder_store import opened

if TYPE_CHECKING:
    import torch

    from rollart_flow.weights.base import AdapterEntry

WEIGHTS, CHECKPOINT, POLICY = "weights", "checkpoint", "policy"


def stored_versions(run: Run) -> dict[int, str]:
    """Return the recorded versions that can be read, ascending, with where each one is stored.

    Raises:
        StoreError, WeightsError: the run's folders cannot be listed.
    """
    from rollart_flow.weights.local import LocalWeightStore

    parent = run.info.parent
    start = 0 if parent is None else parent.step
    rows = run.weights.select("policy_version", "base_version").collect()
    base = dict(rows.iter_rows())
    # A fork that goes on with an adapter has the weights of the adapter's base as its policy.
    found = {start: POLICY} if base.get(start) is None else {}
    found |= dict.fromkeys(stored_checkpoints(checkpoints_uri(run.uri)), CHECKPOINT)
    found |= dict.fromkeys(LocalWeightStore(weights_uri(run.uri)).versions(), WEIGHTS)
    return {version: found[version] for version in sorted(found.keys() & base.keys())}


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
    """Provide the verified weights of a stored version, each read when it is asked for; those of an
    adapter are merged with the run's policy folder and are float32.

    Raises:
        WeightsError, TrainerError, StoreError: they are damaged or cannot be read.
    """
    from rollart_flow.weights.local import LocalWeightStore
    from rollart_flow.weights.whole import adapter_of

    if place == WEIGHTS:
        store = LocalWeightStore(weights_uri(run.uri))
        with ExitStack() as context:
            tensors = context.enter_context(store.opened(version))
            adapter = adapter_of(store, version, tensors)
            yield context.enter_context(_whole(run, tensors, adapter))
        return
    if place == POLICY:
        from rollart_flow.weights.tensor_files import TensorFile

        with opened(policy_uri(run.uri)) as folder:
            yield TensorFile(folder / WEIGHTS_FILE)
        return
    from rollart_flow.trainers.checkpoint.checkpoint import (
        checkpoint_adapter,
        checkpoint_weights,
        is_checkpoint,
    )

    with opened(stored_checkpoints(checkpoints_uri(run.uri))[version]) as folder:
        if is_checkpoint(folder):
            tensors = checkpoint_weights(folder)
        else:
            from rollart_flow.trainers.backends.sharded_checkpoint import sharded_weights

            tensors = sharded_weights(folder)
        adapter = checkpoint_adapter(folder) if is_adapter(tensors) else None
        with _whole(run, tensors, adapter) as weights:
            yield weights


@contextmanager
def _whole(
    run: Run, tensors: Mapping[str, torch.Tensor], adapter: AdapterEntry | None
) -> Iterator[Mapping[str, torch.Tensor]]:
    """Provide the weights of a version that may be an adapter over the run's policy folder."""
    if adapter is None:
        yield tensors
        return
    from rollart_flow.weights.tensor_files import TensorFile
    from rollart_flow.weights.whole import AdapterBase, InFloat32, merged_version

    with opened(policy_uri(run.uri)) as folder:
        base = AdapterBase(TensorFile(folder / WEIGHTS_FILE), policy_uri(run.uri))
        yield InFloat32(merged_version(tensors, adapter, base))

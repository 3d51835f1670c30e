"""Whole weights of versions that are published as LoRA adapters.

The invariant: the result computes what the adapter over its base does; weights that the adapter
changes are float32, as the trainer's are, and all others are those of the base. An adapter is
merged only with the weights that it was trained over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from rollart_flow.errors import SettingsError, WeightsError
from rollart_flow.models.lora import Merged, is_adapter
from rollart_flow.weights.base import AdapterEntry, Manifest, WeightStore
from rollart_flow.weights.fingerprint import fingerprint

if TYPE_CHECKING:
    import torch


class AdapterBase:
    """Whole weights over which adapters were trained, with their checksum computed once."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], said: str) -> None:
        """Take the tensors in Hugging Face names; `said` is where they are, for errors."""
        self.tensors = tensors
        self._said = said

    @cached_property
    def checksum(self) -> str:
        """The `fingerprint` of the tensors, which reads all of them (about 1 s for each GB)."""
        return fingerprint(self.tensors)

    def check(self, adapter: AdapterEntry) -> None:
        """Refuse an adapter that was trained over other weights.

        Raises:
            WeightsError: the checksums differ.
        """
        if adapter.base_checksum is not None and adapter.base_checksum != self.checksum:
            raise WeightsError(
                f"the adapter was trained over other weights than those in {self._said}: their "
                f"checksum is {self.checksum[:12]}, that of the adapter's base "
                f"{adapter.base_checksum[:12]}; restore the folder from a copy of the run"
            )


def merged_version(
    tensors: Mapping[str, torch.Tensor], adapter: AdapterEntry, base: AdapterBase
) -> Mapping[str, torch.Tensor]:
    """Return the whole weights of a version, each computed when it is asked for.

    Args:
        tensors: matrices of the adapter in PEFT's names.
        adapter: rank, scale and base of the adapter.
        base: whole weights of `adapter.base`.

    Raises:
        WeightsError: the adapter was trained over other weights, or does not fit the base.
    """
    import torch

    base.check(adapter)

    said = f"the adapter over version {adapter.base}"
    try:
        return Merged(base.tensors, tensors, adapter.scale, said=said, dtype=torch.float32)
    except SettingsError as error:
        raise WeightsError(error.message) from error


def adapter_of(
    store: WeightStore, version: int, tensors: Mapping[str, torch.Tensor]
) -> AdapterEntry | None:
    """Return the adapter whose matrices a version's tensors are, or None for whole weights.

    Raises:
        WeightsError: the manifest of an adapter cannot be read, or names no base.
    """
    return adapter_in(store.manifest(version)) if is_adapter(tensors) else None


def adapter_in(manifest: Manifest) -> AdapterEntry:
    """Return the adapter of a manifest.

    Raises:
        WeightsError: the manifest describes none.
    """
    if manifest.adapter is None:
        raise WeightsError(
            f"version {manifest.version} holds an adapter, but its manifest names no base; publish "
            "it again"
        )
    return manifest.adapter


class InFloat32(Mapping[str, "torch.Tensor"]):
    """Tensors converted to float32, each when it is asked for."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[name].float()

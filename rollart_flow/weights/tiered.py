"""A weight store of two tiers: a fast store that ends with the run, and a durable one.

The durable store holds versions with a checkpoint, versions to be evaluated and the version from
which a run starts; the fast store holds the versions that engines swap to. If the fast store does
not support late readers, the durable store holds every version too. The invariant: a version
published as durable can be read as long as its run keeps it, even if the fast store fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, WeightCapabilities, WeightStore
from rollart_flow.weights.following import Following
from rollart_flow.weights.terms import FolderTerm

if TYPE_CHECKING:
    import torch


class TieredWeightStore(WeightStore):
    """A store that reads from the fast store if possible and otherwise from the durable one."""

    def __init__(self, fast: WeightStore, lasting: WeightStore) -> None:
        self._fast = fast
        self._lasting = lasting

    @property
    def capabilities(self) -> WeightCapabilities:
        """The durable store provides what the fast one lacks, except for `overlap_publish`."""
        return WeightCapabilities(overlap_publish=self._fast.capabilities.overlap_publish)

    def uri(self, version: int) -> str:
        return (self._fast if self._fast.capabilities.latest else self._lasting).uri(version)

    def _publish(
        self, made: Manifest, tensors: Mapping[str, torch.Tensor], *, lasting: bool
    ) -> None:
        """Publish to the durable store too if the version must last, or late readers need it."""
        if lasting or not self._fast.capabilities.late_join:
            self._lasting.publish(made.version, tensors, made.checksum, made.adapter, lasting=True)
        self._fast.publish(made.version, tensors, made.checksum, made.adapter)

    def begin_term(self, term: FolderTerm) -> None:
        self._lasting.begin_term(term)

    def holds_own(self, version: int) -> bool:
        return self._lasting.holds_own(version)

    def read(self, version: int) -> dict[str, torch.Tensor]:
        try:
            return self._fast.read(version)
        except WeightsError:
            if version not in self._lasting.versions():
                raise
        return self._lasting.read(version)

    def follow(self, version: int, following: Following) -> dict[str, torch.Tensor]:
        followed = self._fast if self._fast.capabilities.late_join else self._lasting
        return followed.follow(version, following)

    def manifest(self, version: int) -> Manifest:
        try:
            return self._fast.manifest(version)
        except WeightsError:
            if version not in self._lasting.versions():
                raise
        return self._lasting.manifest(version)

    def versions(self) -> tuple[int, ...]:
        return tuple(sorted({*self._fast.versions(), *self._lasting.versions()}))

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Remove all but the newest versions and those in `keep`.

        The fast store keeps only the newest versions. The durable store also keeps its own newest
        version, or the requested number of versions if only it can be read.
        """
        alone = not self._fast.capabilities.late_join
        gone = {*self._fast.retain(newest), *self._lasting.retain(newest if alone else 1, keep)}
        return tuple(sorted(gone - set(self.versions())))

    def remove(self, versions: Collection[int]) -> tuple[int, ...]:
        return tuple(sorted({*self._fast.remove(versions), *self._lasting.remove(versions)}))

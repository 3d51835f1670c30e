"""Two weight stores as one: a fast one that ends with the run, and one that lasts.

Versions with a checkpoint, those to be evaluated and the one that a run starts from are in the
lasting store; what engines swap to is in the fast one. Where that gives nothing to who comes
late, every version is in the lasting one too. The invariant: a version that was published as
lasting can be read as long as its run keeps it, whatever becomes of the fast store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, WeightCapabilities, WeightStore

if TYPE_CHECKING:
    import torch


class TieredWeightStore(WeightStore):
    """Reads from the fast store what it has, and the rest from the lasting one."""

    def __init__(self, fast: WeightStore, lasting: WeightStore) -> None:
        self._fast = fast
        self._lasting = lasting

    @property
    def capabilities(self) -> WeightCapabilities:
        """See `WeightStore.capabilities`: the lasting one makes up for what the fast one cannot
        give, but for how it is published to."""
        return WeightCapabilities(beside=self._fast.capabilities.beside)

    def uri(self, version: int) -> str:
        """See `WeightStore.uri`."""
        return (self._fast if self._fast.capabilities.latest else self._lasting).uri(version)

    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Publish to the fast store, and to the lasting one what a late reader would miss there.
        See `WeightStore.publish`."""
        if self._fast.capabilities.late_join:
            return self._fast.publish(version, tensors, checksum)
        return self.publish_lasting(version, tensors, checksum)

    def publish_lasting(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Publish to both. See `WeightStore.publish_lasting`."""
        lasting = self._lasting.publish(version, tensors, checksum)
        fast = self._fast.publish(version, tensors, lasting.checksum)
        return fast if self._fast.capabilities.latest else lasting

    def read(self, version: int) -> dict[str, torch.Tensor]:
        """All tensors of a version. See `WeightStore.read`."""
        try:
            return self._fast.read(version)
        except WeightsError:
            if version not in self._lasting.versions():
                raise
        return self._lasting.read(version)

    def manifest(self, version: int) -> Manifest:
        """What was published under this number. See `WeightStore.manifest`."""
        try:
            return self._fast.manifest(version)
        except WeightsError:
            if version not in self._lasting.versions():
                raise
        return self._lasting.manifest(version)

    def versions(self) -> tuple[int, ...]:
        """Versions that can be read, ascending."""
        return tuple(sorted({*self._fast.versions(), *self._lasting.versions()}))

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Remove all but the newest versions and those in `keep`. See `WeightStore.retain`.

        In the fast store are the newest alone; the lasting one keeps its own newest version too,
        and as many as are asked for where only it can be read.
        """
        alone = not self._fast.capabilities.late_join
        gone = {*self._fast.retain(newest), *self._lasting.retain(newest if alone else 1, keep)}
        return tuple(sorted(gone - set(self.versions())))

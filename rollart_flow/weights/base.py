"""The protocol of weight stores. One variant, one short file beside this one.

Every store passes `tests/weights/conformance.py`. The invariant: whoever reads a version reads all
of it or gets an error, never tensors of two versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Place of one tensor in a published version."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was published. `checksum` is `fingerprint` of the tensors."""

    version: int
    uri: str
    tensors: tuple[TensorEntry, ...]
    size_bytes: int
    checksum: str


class WeightStore(ABC):
    """Published versions of a policy's weights, by number."""

    @abstractmethod
    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> Manifest:
        """Make a version readable, atomically. Publishing equal tensors again changes nothing.

        Raises:
            WeightsError: the version is there with other tensors.
        """

    @abstractmethod
    def read(self, version: int) -> dict[str, torch.Tensor]:
        """All tensors of a version, verified against its checksum.

        Raises:
            WeightsError: the version is missing, torn or damaged.
        """

    @abstractmethod
    def manifest(self, version: int) -> Manifest:
        """What was published under this number.

        Raises:
            WeightsError: the version is missing.
        """

    @abstractmethod
    def versions(self) -> tuple[int, ...]:
        """Versions that can be read, ascending."""

    @abstractmethod
    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Remove all but the newest versions and those in `keep`; what was removed."""

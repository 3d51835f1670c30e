"""The protocol of weight stores. One variant, one short file beside this one.

Every store passes `tests/weights/conformance.py`. The invariant: whoever reads a version reads all
of it or gets an error, never tensors of two versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import WeightsError
from rollart_flow.weights.fingerprint import dtype_name, fingerprint

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class WeightCapabilities:
    """What a store gives beyond carrying a version to engines that wait for it."""

    latest: bool = True
    """Whether it says which versions there are."""
    late_join: bool = True
    """Whether who was not there when a version was published can get it later."""
    beside: bool = True
    """Whether a version may be published in a thread beside the trainer's next step; else the step
    waits for it."""
    device: str = "cpu"
    """Where tensors lie as they are carried; "cuda": from GPU to GPU."""


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

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Manifest:
        """What `dataclasses.asdict` gave, after a way through JSON.

        Raises:
            KeyError, TypeError: it is something else.
        """
        entries = (TensorEntry(e["name"], e["dtype"], tuple(e["shape"])) for e in raw["tensors"])
        return cls(**{**raw, "tensors": tuple(entries)})


def entries_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorEntry, ...]:
    """What manifests say of tensors, in order of their names."""
    return tuple(
        TensorEntry(name, dtype_name(tensors[name]), tuple(tensors[name].shape))
        for name in sorted(tensors)
    )


class WeightStore(ABC):
    """Published versions of a policy's weights, by number."""

    @property
    def capabilities(self) -> WeightCapabilities:
        """What it gives; a store of files gives all."""
        return WeightCapabilities()

    @abstractmethod
    def uri(self, version: int) -> str:
        """Where a version lies, as its manifest says."""

    def describe(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """What `publish` answers for these, said before they are published.

        Raises:
            WeightsError: there is no such version, or nothing in it.
        """
        if version < 0 or not tensors:
            raise WeightsError(f"cannot publish version {version} with {len(tensors)} tensors")
        return Manifest(
            version=version,
            uri=self.uri(version),
            tensors=entries_of(tensors),
            size_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
            checksum=checksum or fingerprint(tensors),
        )

    @abstractmethod
    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Make a version readable, atomically. Publishing equal tensors again changes nothing.

        Args:
            version: number of the training step.
            tensors: by their Hugging Face names.
            checksum: `fingerprint` of the tensors where the caller has it, as after a training
                step; else it is taken here.

        Raises:
            WeightsError: the version is there with other tensors.
        """

    def publish_lasting(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Publish a version that must outlive the processes of its run. Where all do, as here, it
        is published like any other; see `publish`."""
        return self.publish(version, tensors, checksum)

    @abstractmethod
    def read(self, version: int) -> dict[str, torch.Tensor]:
        """All tensors of a version, verified against what was published.

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

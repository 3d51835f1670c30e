"""The base class of weight stores; each variant has a module beside this one.

Every store passes the tests in `tests/weights/conformance.py`. The invariant: a reader gets all
tensors of one version or an error, never tensors of two versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollart_flow.errors import WeightsError, WeightStoreAwayError
from rollart_flow.weights.fingerprint import dtype_name, fingerprint
from rollart_flow.weights.following import Following
from rollart_flow.weights.terms import FolderTerm

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class WeightCapabilities:
    """Capabilities of a store beyond carrying a version to engines that wait for it."""

    latest: bool = True
    """Whether the store can list its versions."""
    late_join: bool = True
    """Whether a reader that was absent when a version was published can get it later."""
    overlap_publish: bool = True
    """Whether a version may be published in a thread beside the trainer's next step; otherwise the
    step waits for it."""
    device: str = "cpu"
    """Device of the tensors during transfer; "cuda" means from GPU to GPU."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Name, dtype and shape of one tensor in a published version."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """The LoRA adapter that a version consists of, over whole weights that never change."""

    base: int
    """Version of the whole weights, which are those of the run's policy folder."""
    rank: int
    alpha: int
    """Factor of the product of the adapter's matrices, times the rank."""
    base_checksum: str | None = None
    """`fingerprint` of the whole weights; None in versions of earlier releases, for which the base
    cannot be checked."""

    @property
    def scale(self) -> float:
        """Factor of the product of the adapter's matrices."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a published version. `checksum` is the `fingerprint` of the tensors."""

    version: int
    uri: str
    tensors: tuple[TensorEntry, ...]
    size_bytes: int
    checksum: str
    adapter: AdapterEntry | None = None
    """The adapter whose matrices, in PEFT's names, are the tensors; None for whole weights."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Manifest:
        """Restore a manifest from the JSON form of `dataclasses.asdict`.

        Raises:
            KeyError, TypeError: the value is not a manifest.
        """
        entries = (TensorEntry(e["name"], e["dtype"], tuple(e["shape"])) for e in raw["tensors"])
        said = raw.get("adapter")
        adapter = None if said is None else AdapterEntry(**said)
        return cls(**{**raw, "tensors": tuple(entries), "adapter": adapter})


def entries_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorEntry, ...]:
    """Return the manifest entries of tensors, sorted by name."""
    return tuple(
        TensorEntry(name, dtype_name(tensors[name]), tuple(tensors[name].shape))
        for name in sorted(tensors)
    )


class WeightStore(ABC):
    """Published versions of a policy's weights, by number."""

    @property
    def capabilities(self) -> WeightCapabilities:
        """The capabilities of this store; a store of files has all of them."""
        return WeightCapabilities()

    @abstractmethod
    def uri(self, version: int) -> str:
        """Return the location of a version as stated in its manifest."""

    def describe(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        checksum: str | None = None,
        adapter: AdapterEntry | None = None,
    ) -> Manifest:
        """Return the manifest that `publish` would return, before the version is published.

        Raises:
            WeightsError: the version is negative or has no tensors.
        """
        if version < 0 or not tensors:
            raise WeightsError(f"cannot publish version {version} with {len(tensors)} tensors")
        return Manifest(
            version=version,
            uri=self.uri(version),
            tensors=entries_of(tensors),
            size_bytes=sum(t.numel() * t.element_size() for t in tensors.values()),
            checksum=checksum or fingerprint(tensors),
            adapter=adapter,
        )

    def publish(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        checksum: str | None = None,
        adapter: AdapterEntry | None = None,
        *,
        lasting: bool = False,
    ) -> Manifest:
        """Make a version readable, atomically. Publishing equal tensors again changes nothing.

        Args:
            version: number of the training step.
            tensors: tensors by Hugging Face name.
            checksum: `fingerprint` of the tensors if the caller has it, as after a training step;
            otherwise it is computed here.
            adapter: the adapter whose matrices the tensors are; None for whole weights.
            lasting: whether the version must outlive the processes of its run, and a power failure.

        Raises:
            WeightsError: the version exists with other tensors.
        """
        made = self.describe(version, tensors, checksum, adapter)
        self._publish(made, tensors, lasting=lasting)
        return made

    @abstractmethod
    def _publish(
        self, made: Manifest, tensors: Mapping[str, torch.Tensor], *, lasting: bool
    ) -> None:
        """Make a described version readable; see `publish`."""

    @abstractmethod
    def read(self, version: int) -> dict[str, torch.Tensor]:
        """Return all tensors of a version, verified against the published checksum.

        Raises:
            VersionMissingError: the version is not published.
            WeightsError: it is incomplete or damaged.
        """

    def follow(self, version: int, following: Following) -> dict[str, torch.Tensor]:
        """Return all tensors of a version, as `read`, which may not be published yet.

        A store that can read a version in parts does so while later parts are being published, and
        returns once the whole version is. By default the version is then read.

        Raises:
            WeightsError: as for `read`; the version does not appear, or `following` is ended.
        """
        following.wait_for(lambda: version in self.versions() or None, f"version {version}")
        return self.read(version)

    @abstractmethod
    def manifest(self, version: int) -> Manifest:
        """Return the manifest of a version.

        Raises:
            WeightsError: the version is missing.
        """

    @abstractmethod
    def versions(self) -> tuple[int, ...]:
        """Return the readable versions in ascending order."""

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Remove all but the newest versions and those in `keep`; return the removed versions.

        Raises:
            WeightsError: not even the newest version would stay, or old ones cannot be removed.
        """
        if newest < 1:
            raise WeightsError(f"retain must keep at least the newest version, not {newest}")
        return self.remove([v for v in self.versions()[:-newest] if v not in keep])

    def remove_after(self, version: int) -> tuple[int, ...]:
        """Remove all versions above one, which a run does not have after its recovery."""
        return self.remove([v for v in self.versions() if v > version])

    def begin_term(self, term: FolderTerm) -> None:  # noqa: B027  others end with their driver
        """Publish for a driver, whatever drivers before it still publish.

        A reader then finds what this driver publishes, and versions of earlier drivers up to the
        one from which this driver continues.
        """

    def holds_own(self, version: int) -> bool:
        """Return whether the driver's own copy of a version can be read."""
        try:
            self.read(version)
        except WeightStoreAwayError:
            raise
        except WeightsError:
            return False
        return True

    @abstractmethod
    def remove(self, versions: Collection[int]) -> tuple[int, ...]:
        """Remove versions, each atomically; return those that were there, in ascending order."""

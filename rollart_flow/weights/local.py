"""Published weights as folders beside the tables of a run, on a file system or in S3.

    <run>/weights/v000012/model.safetensors     the tensors, Hugging Face names
    <run>/weights/v000012/manifest.json         what they are, and their checksum

The invariant: a version appears at once and its files never change, so a reader gets all tensors
of one version or an error (design, invariant 5), whatever is published, collected or killed
meanwhile. `places` sees to that, wherever the folder lies.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors

from rollart_flow.errors import WeightsError
from rollart_flow.weights.base import Manifest, WeightStore
from rollart_flow.weights.fingerprint import fingerprint
from rollart_flow.weights.folder_store import FolderStore, folder_store_at

if TYPE_CHECKING:
    import torch

TENSORS_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
_VERSION_FOLDER = re.compile(r"v(\d{6,})")


class LocalWeightStore(WeightStore):
    """Weight versions in a folder. Any number of processes may read, publish and collect.

    Args:
        folder: usually `<run>/weights`, a path or an address in S3; made when something is
            published.

    Raises:
        WeightsError: it is in a bucket that does not answer.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        with _as_weights_error(f"no weights can be stored in {folder}"):
            self._place: FolderStore = folder_store_at(self.folder)

    def uri(self, version: int) -> str:
        """See `WeightStore.uri`: relative to the run."""
        return f"{Path(self.folder).name}/{_name(version)}"

    def publish(
        self, version: int, tensors: Mapping[str, torch.Tensor], checksum: str | None = None
    ) -> Manifest:
        """Write the version to disk, durably, and make it readable. See `WeightStore.publish`."""
        made = self.describe(version, tensors, checksum)

        def fill(folder: Path) -> None:
            save_tensors(tensors, folder / TENSORS_FILE)
            (folder / MANIFEST_FILE).write_text(json.dumps(asdict(made), indent=1))

        failed = f"version {version} was not published to {self.folder}"
        with _as_weights_error(failed), self._place.writing():
            while not self._holds(made):
                if self._place.put(_name(version), fill):
                    break
        return made

    def read(self, version: int) -> dict[str, torch.Tensor]:
        """All tensors of a version in memory of their own. See `WeightStore.read`."""
        import safetensors.torch

        published = self.manifest(version)
        reading = _as_weights_error(f"weights of version {version} cannot be read")
        with reading, self._place.opened(_name(version)) as folder:
            tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(
                folder / TENSORS_FILE, backend="pread"
            )
        if fingerprint(tensors) != published.checksum:
            raise WeightsError(
                f"weights of version {version} in {self.folder}/{_name(version)} are damaged: "
                "their checksum differs from the manifest's; publish the version again"
            )
        return tensors

    def manifest(self, version: int) -> Manifest:
        """What was published under this number. See `WeightStore.manifest`."""
        if version not in (known := self.versions()):
            there = ", ".join(map(str, known)) or "none"
            raise WeightsError(f"no weights of version {version} in {self.folder}; there: {there}")
        what = f"the manifest of version {version} in {self.folder} cannot be read"
        with _as_weights_error(what):
            return Manifest.from_json(json.loads(self._place.read(_name(version), MANIFEST_FILE)))

    def versions(self) -> tuple[int, ...]:
        """Versions that can be read, ascending."""
        with _as_weights_error(f"{self.folder} cannot be listed"):
            matches = map(_VERSION_FOLDER.fullmatch, self._place.names())
            return tuple(sorted(int(match[1]) for match in matches if match))

    def retain(self, newest: int, keep: Collection[int] = ()) -> tuple[int, ...]:
        """Remove all but the newest versions and those in `keep`. See `WeightStore.retain`."""
        if newest < 1:
            raise WeightsError(f"retain must keep at least the newest version, not {newest}")
        if not self.versions():
            return ()
        failed = f"old versions in {self.folder} were not removed"
        with _as_weights_error(failed), self._place.writing():
            surplus = tuple(v for v in self.versions()[:-newest] if v not in keep)
            for version in surplus:
                self._place.remove(_name(version))
        return surplus

    def _holds(self, made: Manifest) -> bool:
        """Whether this version is there, intact and equal. A damaged equal one may be replaced."""
        try:
            there = self.manifest(made.version)
        except WeightsError:
            return False
        if there.checksum != made.checksum:
            raise WeightsError(
                f"version {made.version} in {self.folder} was published with other tensors; "
                "a version is never replaced, publish under the next number"
            )
        try:
            self.read(made.version)
        except WeightsError:
            return False
        return True


def _name(version: int) -> str:
    """Of the folder of a version."""
    return f"v{version:06d}"


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write a safetensors file; tensors may lie anywhere, be views and share memory.

    Raises:
        OSError, safetensors.SafetensorError: it cannot be written.
    """
    import safetensors.torch

    own: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        storage = flat.untyped_storage()
        if storage.nbytes() != flat.nbytes or storage.data_ptr() in seen:
            flat = flat.clone()  # safetensors refuses tensors that share memory
        seen.add(flat.untyped_storage().data_ptr())
        own[name] = flat
    path.touch()
    mode = path.stat().st_mode
    safetensors.torch.save_file(own, path, {"format": "pt"})
    path.chmod(stat.S_IMODE(mode))  # safetensors leaves it readable for nobody else


@contextmanager
def _as_weights_error(what: str) -> Iterator[None]:
    """Convert what files and their formats raise, once, into one line."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WeightsError(f"{what}: {reason}") from error

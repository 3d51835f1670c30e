"""Published weights as folders next to the tables of a run, on a file system or in S3.

    <run>/weights/v000012/model.safetensors     the tensors, Hugging Face names
    <run>/weights/v000012/manifest.json         what they are, and their checksum

The invariant: a version appears atomically and its files never change, so a reader gets all tensors
of one version or an error, regardless of concurrent publishing, collection and killed processes.
`folder_store` ensures this for local folders and S3. A reader that follows a version reads the
files as they are written, and keeps the tensors only if they have the checksum of the manifest and
the version appeared.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors

from rollart_flow.errors import VersionMissingError, WeightsError, WeightStoreAwayError
from rollart_flow.weights.base import Manifest, WeightStore
from rollart_flow.weights.buckets import ArrivingFingerprint, layout_of, parts, pull, tensors_in
from rollart_flow.weights.fingerprint import fingerprint
from rollart_flow.weights.folder_store import folder_store_at
from rollart_flow.weights.folders import ArrivingFolder, Files, FolderStore
from rollart_flow.weights.following import Following
from rollart_flow.weights.memory import ReusedMemory
from rollart_flow.weights.tensor_files import TensorFile
from rollart_flow.weights.terms import (
    FIRST,
    FolderTerm,
    NumberedFolder,
    folder_name,
    in_force,
    numbered,
)

if TYPE_CHECKING:
    import torch

TENSORS_FILE = "model.safetensors"
MANIFEST_FILE = "manifest.json"
_AT_ONCE = 4
"""Number of buckets of a version that are read concurrently."""
_PREFIX = "v"
"""Beginning of the names of the folders of versions."""


class LocalWeightStore(WeightStore):
    """Weight versions in a folder. Any number of processes may read, publish and collect.

    Args:
        folder: usually `<run>/weights`, a path or an address in S3; created at the first
        publication.

    Raises:
        WeightsError: the bucket does not answer.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = str(folder)
        self._term = FIRST
        self._memory = ReusedMemory()
        with _as_weights_error(f"no weights can be stored in {folder}"):
            self._place: FolderStore = folder_store_at(self.folder)

    def uri(self, version: int) -> str:
        """Return the location of a version relative to the run, as this driver publishes it."""
        return f"{Path(self.folder).name}/{self._own(version)}"

    def begin_term(self, term: FolderTerm) -> None:
        self._term = term
        with _as_weights_error(f"leftovers in {self.folder} were not removed"):
            self._place.clear_leftovers(term)

    def _own(self, version: int) -> str:
        """Return the name of the folder of a version as this driver publishes it."""
        return folder_name(_PREFIX, version, self._term)

    def _publish(
        self, made: Manifest, tensors: Mapping[str, torch.Tensor], *, lasting: bool
    ) -> None:
        name, layout = self._own(made.version), layout_of(made.tensors)

        def files() -> Files:
            yield MANIFEST_FILE, (memoryview(json.dumps(asdict(made), indent=1).encode()),)
            yield TENSORS_FILE, parts(tensors, layout)

        failed = f"version {made.version} was not published to {self.folder}"
        with _as_weights_error(failed), self._place.writing(self._term):
            while not self._holds(made):
                if self._place.put(name, files(), lasting=lasting):
                    return
            if lasting:
                self._place.make_lasting(name)

    def read(self, version: int) -> dict[str, torch.Tensor]:
        return self._read(self._find(version), version)

    def _read(self, name: str, version: int) -> dict[str, torch.Tensor]:
        import safetensors.torch

        published = self._manifest(name, version)
        reading = _as_weights_error(f"weights of version {version} cannot be read")
        with reading, self._place.opened(name) as folder:
            tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(
                folder / TENSORS_FILE, backend="pread"
            )
        self._check(published, fingerprint(tensors))
        return tensors

    @contextmanager
    def opened(self, version: int) -> Iterator[Mapping[str, torch.Tensor]]:
        """Provide the verified tensors of a version, each read when it is asked for.

        Raises:
            WeightsError: the version is missing, incomplete or damaged.
        """
        name = self._find(version)
        published = self._manifest(name, version)
        with ExitStack() as copy:
            with _as_weights_error(f"weights of version {version} cannot be read"):
                folder = copy.enter_context(self._place.opened(name))
                tensors = TensorFile(folder / TENSORS_FILE)
                self._check(published, fingerprint(tensors))
            yield tensors

    def follow(self, version: int, following: Following) -> dict[str, torch.Tensor]:
        with _as_weights_error(f"weights of version {version} cannot be read"):
            return self._follow(version, following)

    def _follow(self, version: int, following: Following) -> dict[str, torch.Tensor]:
        said = f"version {version} in {self.folder}"

        def begun() -> tuple[ArrivingFolder | None] | None:
            there = self._there()
            if version in in_force(there):
                return (None,)
            newest = max((each.term for each in there), default=FIRST)
            found = self._place.arriving(folder_name(_PREFIX, version, newest))
            return None if found is None else (found,)

        (folder,) = following.wait_for(begun, said)
        if folder is None:
            return self.read(version)
        made = following.wait_for(lambda: _manifest(folder.content(MANIFEST_FILE)), said)
        layout = layout_of(made.tensors)
        memory = self._memory.take(layout.size)

        def fetch(number: int, part: torch.Tensor) -> None:
            def read() -> bool | None:
                return folder.bucket(TENSORS_FILE, number, part.numpy().data) or None

            following.wait_for(read, f"bucket {number} of {said}")

        hashed, arrived = ArrivingFingerprint(layout, memory), 0
        for part in pull(memory, folder.bucket_bytes, fetch, following, at_once=_AT_ONCE):
            arrived += part.numel()
            hashed.update(arrived)
        self._check(made, hashed.hexdigest())
        following.wait_for(lambda: folder.whole() or None, f"the end of {said}")
        if self.manifest(version) != made:
            raise WeightsError("another attempt published it")
        return tensors_in(layout, memory)

    def _check(self, published: Manifest, checksum: str) -> None:
        """Raise if the tensors that were read are not the published ones."""
        if checksum != published.checksum:
            raise WeightsError(
                f"weights of version {published.version} in {self.folder} are damaged: their "
                "checksum differs from the manifest's; publish the version again"
            )

    def manifest(self, version: int) -> Manifest:
        return self._manifest(self._find(version), version)

    def _manifest(self, name: str, version: int) -> Manifest:
        what = f"the manifest of version {version} in {self.folder} cannot be read"
        with _as_weights_error(what):
            return Manifest.from_json(json.loads(self._place.read(name, MANIFEST_FILE)))

    def _find(self, version: int) -> str:
        """Return the name of the folder of a version.

        Raises:
            VersionMissingError: there is none.
        """
        known = in_force(self._there())
        if version not in known:
            there = ", ".join(map(str, known)) or "none"
            raise VersionMissingError(
                f"no weights of version {version} in {self.folder}; there: {there}"
            )
        return known[version]

    def versions(self) -> tuple[int, ...]:
        return tuple(in_force(self._there()))

    def _there(self) -> list[NumberedFolder]:
        with _as_weights_error(f"{self.folder} cannot be listed"):
            return numbered(self._place.names(), _PREFIX)

    def remove(self, versions: Collection[int]) -> tuple[int, ...]:
        if not versions:
            return ()
        failed = f"old versions in {self.folder} were not removed"
        with _as_weights_error(failed), self._place.writing(self._term):
            # Those of a later term belong to the driver that has taken the run over.
            there = [f for f in self._there() if f.number in versions and f.term <= self._term]
            for folder in there:
                self._place.remove(folder.name)
        return tuple(sorted({folder.number for folder in there}))

    def holds_own(self, version: int) -> bool:
        try:
            self._read(self._own(version), version)
        except WeightStoreAwayError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            return False
        except WeightsError:
            return False
        return True

    def _holds(self, made: Manifest) -> bool:
        """Return whether this version exists, intact and equal; a damaged one may be replaced."""
        name = self._own(made.version)
        try:
            there = self._manifest(name, made.version)
        except WeightsError:
            return False
        if there.checksum != made.checksum:
            raise WeightsError(
                f"version {made.version} in {self.folder} was published with other tensors; "
                "a version is never replaced, publish under the next number"
            )
        try:
            self._read(name, made.version)
        except WeightsError:
            return False
        return True


def _manifest(stored: bytes | None) -> Manifest | None:
    """Return a manifest that is stored whole, else None."""
    try:
        return None if stored is None else Manifest.from_json(json.loads(stored))
    except ValueError:
        return None


@contextmanager
def _as_weights_error(what: str) -> Iterator[None]:
    """Convert errors of files and their formats into a one-line WeightsError."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        # A server that is away has been asked again already.
        lasts = isinstance(error, PermissionError | ConnectionError)
        passes = isinstance(error, OSError) and not lasts
        kind = WeightStoreAwayError if passes else WeightsError
        raise kind(f"{what}: {reason}") from error

"""A trainer's versions on their way to the weight store, beside its next training step.

ROLLART section 6.2: publishing from the trainer overlaps training. What is published are copies
that training does not touch. The invariant: at most one version is under way, so that at most one
copy of the weights is held beside what trains, and the store is used by one thread at a time;
nothing is announced that cannot be read, and once something has failed, every later call says so:
whoever asked first may have died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_flow.weights import Manifest, WeightStore, fingerprint

if TYPE_CHECKING:
    import torch

Announce = Callable[[int, float], None]
"""Told of a version that can be read now, and the seconds that publishing it took."""


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of a version that was to be published."""

    manifest: Manifest
    under_way: bool
    """Whether it can be read only once it is announced."""


class Publisher:
    """Publishes the versions of one trainer; not for use from two threads."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._under_way: list[Future[None]] = []

    def publish(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        checksum: str | None,
        *,
        lasting: bool,
    ) -> Publication:
        """Publish a version and return once it can be read.

        Args:
            version: number of the training step.
            tensors: by their Hugging Face names.
            checksum: `fingerprint` of the tensors where it is known.
            lasting: whether the version must outlive this run's processes.

        Raises:
            WeightsError: it, or the one before it, cannot be published.
        """
        self.finish()
        publish = self._store.publish_lasting if lasting else self._store.publish
        return Publication(publish(version, tensors, checksum), under_way=False)

    def begin(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        checksum: str | None,
        announce: Announce,
    ) -> Publication:
        """Begin to publish a version that need not last; a store that cannot do so beside training
        (`WeightCapabilities.overlap_publish`) has published it when this returns, unannounced.

        Args:
            version: number of the training step.
            tensors: the caller changes them no more.
            checksum: `fingerprint` of the tensors; taken here where it is not known.
            announce: called in another thread.

        Raises:
            WeightsError: as `publish`.
        """
        if not self._store.capabilities.overlap_publish:
            return self.publish(version, tensors, checksum, lasting=False)
        self.finish()
        began = time.monotonic()
        made = self._store.describe(version, tensors, checksum or fingerprint(tensors))

        def publish() -> None:
            self._store.publish(version, tensors, made.checksum)
            announce(version, time.monotonic() - began)

        self._under_way.append(self._thread.submit(publish))
        return Publication(made, under_way=True)

    def retain(self, newest: int, keep: Collection[int]) -> None:
        """Remove published versions but the newest and those in `keep`, once the one that is under
        way is there and counts; does not wait for that. What fails is raised by `finish`."""
        self._under_way.append(self._thread.submit(self._retain, newest, frozenset(keep)))

    def _retain(self, newest: int, keep: frozenset[int]) -> None:
        self._store.retain(newest, keep)

    def finish(self) -> None:
        """Return once nothing is under way.

        Raises:
            WeightsError: something that was could not be published, or not be removed.
            RayError: nobody could be told of it.
        """
        while self._under_way:
            self._under_way[0].result()
            del self._under_way[0]

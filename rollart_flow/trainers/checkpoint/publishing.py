"""Publication of a trainer's versions to the weight store while the next step trains.

ROLLART section 6.2: publishing from the trainer overlaps training. The published tensors are copies
that training does not change; they are made while the next step computes its gradient. The
invariant: at most one version is being published, so that at most one copy of the weights exists,
and one thread at a time uses the store; only readable versions are announced; after a failure that
does not pass, every later call raises it, since the first caller may have died.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rollart_flow.blocked import blocking
from rollart_flow.errors import WeightStoreAwayError
from rollart_flow.resources.blocking import working
from rollart_flow.retries import DEFAULT, RetryPolicy, retried
from rollart_flow.store.away import passed_outages
from rollart_flow.types import Retried
from rollart_flow.weights import Manifest, WeightStore
from rollart_flow.weights.base import AdapterEntry
from rollart_flow.weights.memory import WeightSnapshot
from rollart_flow.weights.terms import FolderTerm

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Announce = Callable[[int, float], None]
"""Function that receives a version that can be read now, and the seconds of publishing it."""


@dataclass(frozen=True, slots=True)
class Publication:
    """State of the publication of a version."""

    manifest: Manifest
    under_way: bool
    """Whether the version can be read only once it is announced."""


class Publisher:
    """Publishes the versions of one trainer; not safe for concurrent use."""

    def __init__(self, store: WeightStore, policy: RetryPolicy = DEFAULT) -> None:
        self._store = store
        self._policy = policy
        self._retried: list[Retried] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._under_way: list[Future[None]] = []

    def publish(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        checksum: str | None,
        adapter: AdapterEntry | None = None,
        *,
        lasting: bool,
    ) -> Publication:
        """Publish a version and return once it can be read.

        Args:
            version: number of the training step.
            tensors: weights by Hugging Face name, or the matrices of an adapter.
            checksum: `fingerprint` of the tensors, or None if not known.
            adapter: the adapter whose matrices the tensors are; None for whole weights.
            lasting: whether the version must outlive this run's processes.

        Raises:
            WeightsError: this version or the one before it cannot be published.
        """
        self.finish()
        call = partial(self._store.publish, version, tensors, checksum, adapter, lasting=lasting)
        made = self._retry(f"publish version {version}", call)
        return Publication(made, under_way=False)

    def begin(
        self,
        version: int,
        weights: WeightSnapshot,
        checksum: str | None,
        announce: Announce,
        adapter: AdapterEntry | None = None,
    ) -> Publication:
        """Begin to publish a version that need not last; a store that cannot do so beside training
        (`WeightCapabilities.overlap_publish`) has published it when this returns, unannounced.

        Args:
            version: number of the training step.
            weights: weights by Hugging Face name, copied in another thread.
            checksum: `fingerprint` of the tensors, or None if not known.
            announce: function that is called in another thread.
            adapter: see `publish`.

        Raises:
            WeightsError: see `publish`.
        """
        tensors = weights.tensors
        if not self._store.capabilities.overlap_publish:
            return self.publish(version, tensors, checksum, adapter, lasting=False)
        self.finish()
        began = time.monotonic()
        made = self._store.describe(version, tensors, checksum, adapter)

        def publish() -> None:
            call = partial(self._store.publish, version, weights.take(), made.checksum, adapter)
            self._retry(f"publish version {version}", call)
            announce(version, time.monotonic() - began)

        self._under_way.append(self._thread.submit(publish))
        return Publication(made, under_way=True)

    def publish_missing(
        self,
        version: int,
        tensors: Mapping[str, torch.Tensor],
        checksum: str | None,
        adapter: AdapterEntry | None = None,
    ) -> None:
        """Publish a version unless this driver has: it need not have outlived a crash whole, and
        an earlier driver may still remove its own copy.

        Raises:
            WeightsError: it cannot be published.
        """

        def publish() -> None:
            if not self._store.holds_own(version):
                self._store.remove([version])
                self._store.publish(version, tensors, checksum, adapter, lasting=True)

        self._retry(f"publish version {version}", publish)

    def retain(self, newest: int, keep: Collection[int]) -> None:
        """Remove published versions except the newest and those in `keep`, after any publication
        in progress, without waiting. `finish` raises an error of the removal."""
        self._under_way.append(self._thread.submit(self._retain, newest, frozenset(keep)))

    def _retain(self, newest: int, keep: frozenset[int]) -> None:
        self._retry("remove old versions", partial(self._store.retain, newest, keep))

    def continue_from(self, version: int, term: FolderTerm) -> None:
        """Publish for a driver that continues from a version, and remove all versions above it.

        Raises:
            WeightsError: they cannot be removed.
        """
        self._retry("remove leftovers", partial(self._store.begin_term, term))
        what = f"remove versions after {version}"
        self._retry(what, partial(self._store.remove_after, version))

    def _retry(self, what: str, call: Callable[[], T]) -> T:
        with working(what):
            return retried(what, call, WeightStoreAwayError, self._retried.append, self._policy)

    def retried(self) -> tuple[Retried, ...]:
        """Return what failed before it succeeded, since the last call."""
        retried, self._retried = (*self._retried, *passed_outages()), []
        return retried

    def finish(self) -> None:
        """Return once all publications and removals are complete.

        Raises:
            WeightsError: a version could not be published or removed.
            RayError: a version could not be announced.
        """
        while self._under_way:
            with blocking("end of a publication"):
                self._under_way[0].result()
            del self._under_way[0]

"""Prefetching of weights for one engine during generation (ROLLART section 6.3).

The next version is read while it is being published, so that the engine is suspended only for the
swap. The invariant: at most one version is read or held ahead; a version that could not be read
ahead is read on request, so prefetching affects only the duration. Only the read on request is
repeated if the storage fails, or if the version is not there: it may still be on its way to the
store when an engine that has lost its process is asked to serve it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.protocols import PullStats
from rollart_flow.errors import VersionMissingError, WeightsError, WeightStoreAwayError
from rollart_flow.retries import DEFAULT, RetryPolicy, retried_async
from rollart_flow.types import Retried
from rollart_flow.weights import WeightStore
from rollart_flow.weights.base import AdapterEntry
from rollart_flow.weights.following import Following
from rollart_flow.weights.whole import adapter_in

if TYPE_CHECKING:
    import torch

    Tensors: TypeAlias = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The read of a version ahead of the request for it."""

    version: int
    following: Following
    reading: asyncio.Task[tuple[Tensors, float]]

    @property
    def failed(self) -> bool:
        return self.reading.done() and self.reading.exception() is not None


def _seen(reading: asyncio.Task[object]) -> None:
    """Retrieve the error of a read, which asyncio would print if the version is never asked for."""
    if not reading.cancelled():
        reading.exception()


class WeightPrefetcher:
    """A reader of versions in a thread of the event loop; one caller at a time may `take`."""

    def __init__(self, store: WeightStore, policy: RetryPolicy = DEFAULT) -> None:
        self._store = store
        self._policy = policy
        self._ahead: _Ahead | None = None
        self._retried: list[Retried] = []

    def begin(self, version: int) -> None:
        """Start to read a version ahead, in place of an older one, without waiting.

        A version that is not published yet is read as its parts appear.
        """
        before = self._ahead
        if before is not None and before.version >= version + before.failed:
            return
        if before is not None:
            before.following.end()
        following = Following()
        reading = asyncio.create_task(self._follow(version, following, before))
        reading.add_done_callback(_seen)
        self._ahead = _Ahead(version, following, reading)

    async def take(self, version: int) -> tuple[Tensors, PullStats]:
        """Return the tensors of a version, which the caller owns, and the read statistics.

        Raises:
            WeightsError: the version cannot be read.
        """
        asked = time.monotonic()
        if self._ahead is not None and self._ahead.version == version:
            ahead, self._ahead = self._ahead, None
            with suppress(WeightsError), waiting(f"read of version {version}, begun before"):
                tensors, seconds = await ahead.reading
                return tensors, PullStats(seconds, time.monotonic() - asked)
        with waiting(f"read of version {version}"):
            tensors = await retried_async(
                f"read version {version}",
                partial(asyncio.to_thread, self._store.read, version),
                (WeightStoreAwayError, VersionMissingError),
                self._retried.append,
                self._policy,
            )
        seconds = time.monotonic() - asked
        return tensors, PullStats(seconds, seconds)

    async def adapter(self, version: int) -> AdapterEntry:
        """Return the description of a version whose tensors are an adapter's.

        Raises:
            WeightsError: the manifest cannot be read, or names no base.
        """
        what = f"read manifest of version {version}"
        with waiting(what):
            manifest = await retried_async(
                what,
                partial(asyncio.to_thread, self._store.manifest, version),
                WeightStoreAwayError,
                self._retried.append,
                self._policy,
            )
        return adapter_in(manifest)

    def retried(self) -> tuple[Retried, ...]:
        """Return the reads that failed before they succeeded, since the last call."""
        retried, self._retried = tuple(self._retried), []
        return retried

    async def _follow(
        self, version: int, following: Following, before: _Ahead | None
    ) -> tuple[Tensors, float]:
        """Return tensors and the seconds of reading them, after another read has ended and its
        result is dropped."""
        if before is not None:
            await asyncio.gather(before.reading, return_exceptions=True)
            del before
        started = time.monotonic()
        try:
            with waiting(f"read ahead of version {version}"):
                tensors = await asyncio.to_thread(self._store.follow, version, following)
        finally:
            following.end()  # the thread goes on if this task is cancelled
        return tensors, time.monotonic() - started - following.waited_s

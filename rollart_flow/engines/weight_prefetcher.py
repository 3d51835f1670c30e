"""Prefetching of weights for one engine during generation (ROLLART section 6.3).

The next version is read as soon as it is announced, so that the engine is suspended only for the
swap. The invariant: at most one version is read or held ahead; a version that could not be read
ahead is read on request, so prefetching affects only the duration.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from rollart_flow.control.protocols import PullStats
from rollart_flow.errors import WeightsError
from rollart_flow.weights import WeightStore

if TYPE_CHECKING:
    import torch

    Tensors: TypeAlias = dict[str, torch.Tensor]


class WeightPrefetcher:
    """A reader of versions in a thread of the event loop; one caller at a time may `take`."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self._ahead: tuple[int, asyncio.Task[tuple[Tensors, float]]] | None = None

    def begin(self, version: int) -> None:
        """Start to read a version ahead, in place of an older one, without waiting."""
        if self._ahead is None or self._ahead[0] < version:
            before = None if self._ahead is None else self._ahead[1]
            self._ahead = version, asyncio.create_task(self._read(version, before))

    async def take(self, version: int) -> tuple[Tensors, PullStats]:
        """Return the tensors of a version, which the caller owns, and the read statistics.

        Raises:
            WeightsError: the version cannot be read.
        """
        asked = time.monotonic()
        if self._ahead is not None and self._ahead[0] == version:
            (_, reading), self._ahead = self._ahead, None
            with suppress(WeightsError):
                tensors, seconds = await reading
                return tensors, PullStats(seconds, time.monotonic() - asked)
        tensors, seconds = await self._read(version)
        return tensors, PullStats(seconds, time.monotonic() - asked)

    async def _read(
        self, version: int, before: asyncio.Task[tuple[Tensors, float]] | None = None
    ) -> tuple[Tensors, float]:
        """Return tensors and the read time in seconds, after another read has ended and its result
        is dropped."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
            del before
        started = time.monotonic()
        tensors = await asyncio.to_thread(self._store.read, version)
        return tensors, time.monotonic() - started

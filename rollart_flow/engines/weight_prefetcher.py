"""Weights on their way to one engine, read beside generation (ROLLART section 6.3).

The version that comes next is read as soon as it is announced, so that the engine is suspended for
the swap alone. The invariant: at most one version is read or held ahead, and one that could not be
is read when it is asked for, so that reading ahead changes nothing but how long that takes.
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
    """Reads versions in a thread of the running loop; for one caller of `take` at a time."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self._ahead: tuple[int, asyncio.Task[tuple[Tensors, float]]] | None = None

    def begin(self, version: int) -> None:
        """Read a version ahead, in place of an older one; does not wait."""
        if self._ahead is None or self._ahead[0] < version:
            before = None if self._ahead is None else self._ahead[1]
            self._ahead = version, asyncio.create_task(self._read(version, before))

    async def take(self, version: int) -> tuple[Tensors, PullStats]:
        """The tensors of a version, which the caller owns, and what it took to read them.

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
        """Tensors and the seconds that they took, after another read has ended, whose result is let
        go of."""
        if before is not None:
            await asyncio.gather(before, return_exceptions=True)
            del before
        started = time.monotonic()
        tensors = await asyncio.to_thread(self._store.read, version)
        return tensors, time.monotonic() - started

"""A weight store that is sometimes slow or unavailable."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

from rollart_flow.errors import VersionMissingError, WeightStoreAwayError
from rollart_flow.retries import RetryPolicy, retried_async
from rollart_flow.types import Retried
from tests.dst.log import Log
from tests.dst.plans import Faults

_READ_S = 0.05
_SLOWEST_S = 2.0
_POLICY = RetryPolicy(limit_s=60.0, backoff_s=0.2, backoff_cap_s=2.0)
T = TypeVar("T")


class FaultyWeightStore:
    """The published versions, which outlive every process.

    Args:
        chance: source of all randomness.
        faults: probabilities that the store is slow or unavailable.
    """

    def __init__(self, chance: Random, faults: Faults, log: Log) -> None:
        self._chance = chance
        self._faults = faults
        self._log = log
        self._versions = {0}

    async def publish(self, version: int) -> None:
        """Store a version, possibly again, with the retries of `Publisher`.

        Raises:
            WeightStoreAwayError: the store is unavailable for too long.
        """
        await self._repeated(f"publish version {version}", partial(self._publish, version))

    async def pull(self, version: int) -> int:
        """Read a version with the retries of `WeightPrefetcher.take`.

        Raises:
            WeightStoreAwayError: the store is unavailable for too long.
            VersionMissingError: the version is not published meanwhile.
        """
        return await self._repeated(f"read version {version}", partial(self.read, version))

    async def _repeated(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        def note(retried: Retried) -> None:
            self._log.write("retry", what, detail=f"{retried.failures} failures")

        chance = self._chance
        passing = (WeightStoreAwayError, VersionMissingError)
        return await retried_async(what, call, passing, note, _POLICY, chance=chance)

    async def _publish(self, version: int) -> None:
        await self._reach()
        self._versions.add(version)
        await self._answer()

    async def read(self, version: int) -> int:
        """Read a version once.

        Raises:
            WeightStoreAwayError: the store is unavailable.
            VersionMissingError: the version is not published.
        """
        await self._reach()
        if version not in self._versions:
            raise VersionMissingError(f"version {version} is not published")
        return version

    async def _reach(self) -> None:
        seconds = self._chance.expovariate(1 / _READ_S)
        if self._chance.random() < self._faults.weights_slow:
            seconds += self._chance.uniform(0.0, _SLOWEST_S)
        await asyncio.sleep(seconds)
        await self._answer()

    async def _answer(self) -> None:
        if self._chance.random() < self._faults.weights_unavailable:
            raise WeightStoreAwayError("the weight store is unavailable")

"""A weight store that is sometimes slow or unavailable."""

import asyncio
from random import Random

from rollart_flow.errors import WeightsError
from tests.dst.plans import Faults

_READ_S = 0.05
_SLOWEST_S = 2.0


class FaultyWeightStore:
    """The published versions, which outlive every process.

    Args:
        chance: source of all randomness.
        faults: probabilities that the store is slow or unavailable.
    """

    def __init__(self, chance: Random, faults: Faults) -> None:
        self._chance = chance
        self._faults = faults
        self._versions = {0}

    async def publish(self, version: int) -> None:
        """Store a version, possibly again.

        Raises:
            WeightsError: the store is unavailable.
        """
        await self._reach()
        self._versions.add(version)

    async def read(self, version: int) -> int:
        """Read a version.

        Raises:
            WeightsError: the store is unavailable, or the version was never published.
        """
        await self._reach()
        if version not in self._versions:
            raise WeightsError(f"version {version} was never published")
        return version

    async def _reach(self) -> None:
        seconds = self._chance.expovariate(1 / _READ_S)
        if self._chance.random() < self._faults.weights_slow:
            seconds += self._chance.uniform(0.0, _SLOWEST_S)
        await asyncio.sleep(seconds)
        if self._chance.random() < self._faults.weights_unavailable:
            raise WeightsError("the weight store is unavailable")

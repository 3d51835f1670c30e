"""Bounded stages of a rollout: INIT, RUN and REWARD overlap across trajectories (SkyRL-Agent).

A rollout is three jobs: making and resetting the environment, the loop of generation and steps, and
the reward. Each has so many places in a process, and a queue of as many before the loop: an attempt
whose environment is ready moves to the queue and leaves its place to the next one; while the queue
is full it keeps it. What has ended leaves the process, and waits for a place of the reward stage in
the stream between the operators, which credits bound. The invariant: no stage ever holds more than
its places, and whoever came first moves on first; an attempt that is interrupted holds nothing.

The places of INIT, of the queue and of RUN are kept here; the reward operator keeps its own.
"""

import asyncio

from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.schedule.stage_sizes import StageSizes


class FifoSemaphore:
    """So many places, given in the order of arrival.

    Args:
        name: of one place, in names of waits.
        count: how many there are.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._free = count
        self._line: dict[asyncio.Future[None], None] = {}

    @property
    def free(self) -> int:
        """Places that nobody holds."""
        return self._free

    async def take(self, who: str) -> None:
        """Wait for a place."""
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[place] = None
        try:
            with waiting(f"{self._name}({who})"):
                await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # given at the moment of the interruption
                self.give_back()
            raise
        finally:
            self._line.pop(place, None)

    def give_back(self) -> None:
        """Leave a place to the next in line."""
        for place in self._line:
            if not place.done():
                del self._line[place]
                place.set_result(None)
                return
        self._free += 1


class Stages:
    """The stages of one process."""

    def __init__(self, sizes: StageSizes) -> None:
        self.init = FifoSemaphore("init place", sizes.init)
        self.queue = FifoSemaphore("run queue", sizes.run)
        self.run = FifoSemaphore("run place", sizes.run)


class StageSlot:
    """One attempt on its way through the stages. It holds one place at a time, or none."""

    def __init__(self, stages: Stages, name: str) -> None:
        self._stages = stages
        self._name = name
        self._held: FifoSemaphore | None = None

    async def begin(self) -> None:
        """Wait until the environment may be made."""
        await self._move(self._stages.init)

    async def proceed(self) -> None:
        """The environment is ready: wait until the loop may begin."""
        await self._move(self._stages.queue)
        await self._move(self._stages.run)

    async def _move(self, places: FifoSemaphore) -> None:
        await places.take(self._name)
        self.leave()
        self._held = places

    def leave(self) -> None:
        """Give back what is held. May be called at any moment, and twice."""
        if self._held is not None:
            self._held.give_back()
            self._held = None

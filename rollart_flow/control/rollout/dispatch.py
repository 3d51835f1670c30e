"""Dispatch: how the attempts of one process wait for one another, and where a group is decoded.

Three rules of a schedule apply to concurrent attempts: barriers (lockstep), bounded stages, and the
placement of a group on inference workers. The invariant: attempts that wait for one another share
the `Dispatch` of their rollout worker.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from rollart_flow.control.ids import group_cursor
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.schedule.declarations import Barrier, GroupPlacement, StageSizes
from rollart_flow.control.schedule.schedule import Schedule
from rollart_flow.types import Assignment


class FifoSemaphore:
    """A fixed number of places, given in the order of arrival.

    Args:
        name: name of one place, for names of waits.
        count: number of places.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._free = count
        self._line: dict[asyncio.Future[None], None] = {}

    @property
    def free(self) -> int:
        """Number of free places."""
        return self._free

    async def take(self, who: str) -> None:
        """Wait for a place; `who` names the waiter."""
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
        """Give a place to the longest-waiting attempt, or free it."""
        for place in self._line:
            if not place.done():
                del self._line[place]
                place.set_result(None)
                return
        self._free += 1


class Stages:
    """The stages of one process: INIT, a queue, and RUN (SkyRL-Agent).

    An attempt whose environment is ready moves to the queue and leaves its place in INIT to the
    next attempt; while the queue is full, it keeps the place. The reward stage bounds the stage
    of rewards. The invariant: no stage holds more attempts than it has places, attempts move on in
    the order of their arrival, and an interrupted attempt holds no place.
    """

    def __init__(self, sizes: StageSizes) -> None:
        self.init = FifoSemaphore("init place", sizes.init)
        self.queue = FifoSemaphore("run queue", sizes.run)
        self.run = FifoSemaphore("run place", sizes.run)


class StagePlace:
    """The place of one attempt in a stage, which holds at most one at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._held: FifoSemaphore | None = None

    async def move(self, places: FifoSemaphore) -> None:
        """Wait for a place of the next stage, and only then leave the former one."""
        await places.take(self._name)
        self.leave()
        self._held = places

    def leave(self) -> None:
        """Give back the place, if there is one; may be called at any moment, and twice."""
        if self._held is not None:
            self._held.give_back()
            self._held = None


class StageSlot(StagePlace):
    """The place of one attempt in the stages of a schedule."""

    def __init__(self, stages: Stages, name: str) -> None:
        super().__init__(name)
        self._stages = stages

    async def begin(self) -> None:
        """Wait until the attempt may create its environment."""
        await self.move(self._stages.init)

    async def proceed(self) -> None:
        """Wait until the attempt, whose environment is ready, may begin its turns."""
        await self.move(self._stages.queue)
        await self.move(self._stages.run)


T = TypeVar("T")


class Lockstep:
    """Barriers between the attempts that run concurrently, the baseline for asynchronous rollout.

    With barriers at turns, each turn takes as long as the slowest environment (Sync in ROLLART
    sections 6.1 and 7.1); with barriers at ends, no attempt is scored before all have ended (ROLL
    Flash section 5.1.1).

    Args:
        turns: attempts wait for one another before each turn.
        ends: attempts wait for one another once they have ended.
    """

    def __init__(self, *, turns: bool = True, ends: bool = True) -> None:
        self._turns = turns
        self._ends = ends
        self._running = 0
        self._ready: list[asyncio.Future[None]] = []
        self._ended: list[asyncio.Future[None]] = []

    async def turn(self) -> None:
        """Wait until every running attempt is about to begin its next turn."""
        if self._turns:
            await self._wait(self._ready, "the turns of the other attempts")

    async def run(self, attempt: Awaitable[T]) -> T:
        """Run an attempt and return its result; with `ends`, wait for all concurrent attempts."""
        self._running += 1
        try:
            result = await attempt
        finally:
            self._running -= 1
            self._release()
        if self._ends:
            await self._wait(self._ended, "the ends of the other attempts")
        return result

    async def _wait(self, row: list[asyncio.Future[None]], name: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        row.append(place)
        self._release()
        try:
            with waiting(name):
                await place
        finally:
            if place in row:  # interrupted: the others do not wait for it
                row.remove(place)
                self._release()

    def _release(self) -> None:
        """Check the barriers again after the callbacks that are already scheduled."""
        asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        if self._ready and len(self._ready) == self._running:
            _release_all(self._ready)
        if self._running == 0:
            _release_all(self._ended)


def _release_all(row: list[asyncio.Future[None]]) -> None:
    places = list(row)
    row.clear()
    for place in places:
        if not place.done():
            place.set_result(None)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Rules for concurrent attempts of one process; by default attempts are independent."""

    lockstep: Lockstep | None = None
    stages: Stages | None = None
    group_placement: GroupPlacement = GroupPlacement.SPREAD

    @staticmethod
    def of(schedule: Schedule) -> "Dispatch":
        """Create the dispatch of a schedule for one process."""
        turns, ends = Barrier.TURNS in schedule.barriers, Barrier.ENDS in schedule.barriers
        return Dispatch(
            lockstep=Lockstep(turns=turns, ends=ends) if turns or ends else None,
            stages=None if schedule.stages is None else Stages(schedule.stages),
            group_placement=schedule.group_placement,
        )

    def slot(self, assignment: Assignment) -> StageSlot | None:
        """Return the stage slot of an attempt, or None without stages."""
        return None if self.stages is None else StageSlot(self.stages, assignment.trajectory_id)

    def placement(self, assignment: Assignment) -> int | None:
        """Return `GenerationRequest.placement` for an attempt."""
        if self.group_placement is GroupPlacement.SPREAD:
            return None
        return group_cursor(assignment.group_id)


FREE = Dispatch()
"""Dispatch without barriers, stages or shared placement."""

"""Micro-batches of trajectories, of whose rows a network loses, repeats, splits and delays some.

The rows of an episode are together, since one message has them all. The invariant: a micro-batch
counts as durable only after all of its rows were acknowledged, as the sender sends a micro-batch
again that did not arrive whole.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, cast

from rollart_flow.operators.sink import BufferSink
from rollart_flow.types import Trajectory
from tests.dst.network import Address, GoneError
from tests.dst.process import BufferProcess
from tests.dst.tables import by_episode
from tests.dst.world import World

if TYPE_CHECKING:
    from rollart_flow.operators.buffer import BufferActor
    from rollart_flow.resources import Remote

_LATEST_S = 1.0
_FULL = 4
"""Number of rows of a full micro-batch: few, as the processes of a plan run few attempts."""


class FaultySink(BufferSink):
    """The real sink of a process of rollout workers, which sends through a faulty network."""

    def __init__(self, world: World, buffer: Address[BufferProcess]) -> None:
        super().__init__(cast("Remote[BufferActor]", buffer))
        self._world = world
        self._network = world.network
        self._to = buffer
        self.dead = False
        """Whether the process of the sink has ended, so that it sends no more."""

    def put(self, branches: Sequence[Trajectory]) -> asyncio.Future[None]:
        durable = super().put(branches)
        if len(self._waiting) >= _FULL:
            self.flush()
        return durable

    async def _send(self, trajectories: list[Trajectory], durable: asyncio.Future[None]) -> None:
        if self.dead:
            return
        try:
            await asyncio.gather(*map(self._deliver, self._parts(trajectories)))
        except Exception as error:  # noqa: BLE001  raised in each attempt that waits, as by the real one
            durable.set_exception(error)
        except asyncio.CancelledError:  # the life has ended
            durable.set_exception(GoneError())
            raise
        else:
            durable.set_result(None)

    def _parts(self, rows: list[Trajectory]) -> list[tuple[Trajectory, ...]]:
        """The messages in which the rows of a micro-batch arrive."""
        chance, faults = self._world.chance, self._world.plan.faults
        episodes = by_episode(rows)
        place = chance.randrange(len(episodes))
        parts = [episodes]
        if chance.random() < faults.rows_split:
            parts = [part for part in (episodes[:place], episodes[place:]) if part]
        if chance.random() < faults.rows_doubled:
            parts[-1] = [*parts[-1], episodes[place]]
        if chance.random() < faults.rows_lost:
            parts.append(episodes[place:])  # of the first try, whose other rows are lost
        return [tuple(chain.from_iterable(part)) for part in parts]

    async def _deliver(self, rows: tuple[Trajectory, ...]) -> None:
        world = self._world
        if world.chance.random() < world.plan.faults.rows_late:
            await asyncio.sleep(world.chance.uniform(0.0, _LATEST_S))
        await self._network.call(self._to, partial(BufferProcess.put, rows=rows))

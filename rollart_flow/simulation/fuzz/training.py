"""The trainer's side: batches in, versions out, step by step."""

import asyncio
from functools import partial

from rollart_flow.control.controller import AsyncController
from rollart_flow.errors import WeightsError
from rollart_flow.simulation.fuzz.network import Address
from rollart_flow.simulation.fuzz.process import BufferProcess
from rollart_flow.simulation.fuzz.world import World
from rollart_flow.types import Batch

_AGAIN_S = 0.2


class Trainer:
    """Trains the steps that are not recorded, one after the other.

    Started over, it repeats the report of the last step, which may not have arrived.
    """

    def __init__(
        self, world: World, controller: Address[AsyncController], buffer: Address[BufferProcess]
    ) -> None:
        self._world = world
        self._controller = controller
        self._buffer = buffer

    async def run(self) -> None:
        """Train to the last step."""
        step = self._world.tables.published
        if step:
            await self._report(step)
        while (batch := await self._next_batch(step + 1)) is not None:
            step = batch.step
            await asyncio.sleep(self._world.chance.uniform(0.5, 1.5) * self._world.plan.train_s)
            await self._publish(step)
            record = partial(BufferProcess.record_step, step=step)
            await self._world.network.call(self._buffer, record)
            await self._report(step)

    async def _next_batch(self, step: int) -> Batch | None:
        ask = partial(AsyncController.next_batch, step=step)
        return await self._world.network.call(self._controller, ask)

    async def _publish(self, version: int) -> None:
        while True:
            try:
                await self._world.weights.publish(version)
            except WeightsError as error:
                self._world.log.write("fault", f"version {version}", detail=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _report(self, step: int) -> None:
        trained = partial(AsyncController.trained, step=step)
        await self._world.network.call(self._controller, trained)

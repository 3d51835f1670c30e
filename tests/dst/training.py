"""The trainer of a simulated run: it takes batches and publishes versions, step by step."""

import asyncio
from functools import partial

from rollart_flow.control.plane import ControlPlane
from rollart_flow.control.schedule.declarations import Phase
from rollart_flow.types import Batch
from tests.dst.network import Address
from tests.dst.process import BufferProcess
from tests.dst.world import World


class Trainer:
    """Trains the steps that are not recorded, one after the other.

    Versions are published beside the next step if the schedule trains beside rollout. A restarted
    trainer publishes the last version again, of which only the row may exist, and repeats its
    report, which may not have arrived.
    """

    def __init__(
        self, world: World, coordinator: Address[ControlPlane], buffer: Address[BufferProcess]
    ) -> None:
        self._world = world
        self._network = world.network
        self._coordinator = coordinator
        self._buffer = buffer
        self._beside = Phase.UPDATE in world.plan.schedule.before_training
        self._publishing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Train up to the last step."""
        self._stored = None if self._world.other is None else self._world.other.reader()
        step = self._world.tables.published
        if step:
            await self._world.weights.publish(step)
            await self._tell_published(step)
            await self._report(step, 0.0)
        try:
            while (batch := await self._next_batch(step + 1)) is not None:
                step = batch.step
                await self._train(batch)
            await self._published_before()
        finally:
            if self._publishing is not None:
                self._publishing.cancel()
                await asyncio.gather(self._publishing, return_exceptions=True)
                self._publishing = None

    async def _train(self, batch: Batch) -> None:
        """Train on a batch, whose manifest is committed meanwhile."""
        step, network = batch.step, self._network
        await network.call(self._buffer, partial(BufferProcess.hand_out, batch=batch))
        self._draw(step)
        train_s = self._world.chance.uniform(0.5, 1.5) * self._world.plan.train_s
        await asyncio.sleep(train_s / 2)
        await network.call(self._buffer, partial(BufferProcess.write_manifest, batch=batch))
        await asyncio.sleep(train_s / 2)
        await self._published_before()
        if self._beside:
            work = self._publish_and_tell(step)
            self._publishing = asyncio.create_task(work, name=f"publish({step})")
        else:
            await self._world.weights.publish(step)
        await network.call(self._coordinator, lambda plane: plane.controller.exchanged(step))
        record = partial(BufferProcess.record_step, step=step)
        await network.call(self._buffer, record)
        # A coordinator that was restarted before this commit has not heard of the version before.
        await self._tell_published(step - 1)
        await self._report(step, None if self._beside else 0.0)

    def _draw(self, step: int) -> None:
        """Draw stored rows for a step, from tables that others change meanwhile."""
        other = self._world.other
        if other is not None and self._stored is not None:
            other.disturb()
            self._world.monitor.drew(step, other, self._stored.rows(step, (step - 1, step - 1)))

    def draw_again(self) -> None:
        """Draw the stored rows of all steps again, as a replay does."""
        if self._world.other is not None:
            self._stored = self._world.other.reader()
            for step in self._world.tables.trained:
                self._draw(step)

    async def _published_before(self) -> None:
        """Wait for the version of the step before: versions are published one at a time."""
        if self._publishing is not None:
            await self._publishing

    async def _next_batch(self, step: int) -> Batch | None:
        return await self._network.call(
            self._coordinator, lambda plane: plane.controller.next_batch(step)
        )

    async def _publish_and_tell(self, version: int) -> None:
        await self._world.weights.publish(version)
        await self._tell_published(version)

    async def _tell_published(self, version: int) -> None:
        async def published(plane: ControlPlane) -> None:
            plane.controller.published(version, 0.0)

        await self._network.call(self._coordinator, published)

    async def _report(self, step: int, push_s: float | None) -> None:
        await self._network.call(
            self._coordinator, lambda plane: plane.controller.trained(step, push_s)
        )

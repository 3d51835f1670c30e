"""Scheduler, controller and engine group in one process, as in the coordinator actor."""

from rollart_flow.control.protocols import Buffered, Emit
from rollart_flow.control.schedule.controller import AsyncController
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from tests.dst.engine_group import start_engine_group
from tests.dst.engines import FaultyEngine
from tests.dst.environments import endless_tasks
from tests.dst.world import World


class Coordinator:
    """A coordinator, restored from the tables and from the state of the engines.

    Args:
        engines: all inference workers.
        buffered: the buffer.
        emit: receives events.
        incarnation: number of the coordinator within a run.
    """

    def __init__(
        self,
        world: World,
        engines: list[FaultyEngine],
        buffered: Buffered,
        emit: Emit,
        incarnation: int,
    ) -> None:
        self._buffered = buffered
        plan, tables = world.plan, world.tables
        recovered = tables.recovered()
        self.engine_group = start_engine_group(world, engines, emit)
        self.scheduler = RolloutScheduler(
            endless_tasks(recovered.next_cursor),
            plan.settings,
            plan.schedule.bound,
            emit,
            admission=plan.schedule.admission,
            version=self.engine_group.version,
            incarnation=incarnation,
        )
        self.scheduler.restore(recovered.groups, recovered.next_cursor)
        first_step = tables.published + 1
        self.controller = AsyncController(
            buffered,
            self.engine_group,
            self.scheduler,
            plan.schedule,
            emit,
            batch_size=plan.batch_size,
            steps=plan.steps,
            first_step=first_step,
            served=self.engine_group.version,
            pending=tables.batches.get(first_step),
            suspended=self.engine_group.suspended,
        )
        if tables.published >= plan.steps:
            self.scheduler.stop()  # the trainer asks for no further batch

    async def follow(self, cursor: int) -> None:
        """Apply the buffer's changes to the scheduler, from a cursor on."""
        while True:
            cursor, changes = await self._buffered.changes(cursor)
            for change in changes:
                self.scheduler.apply(change)

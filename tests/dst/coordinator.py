"""Scheduler, controller and engine commands in one process, as the coordinator actor has them."""

from rollart_flow.control.protocols import Buffered, Emit
from rollart_flow.control.schedule.controller import AsyncController
from rollart_flow.control.scheduler.rollout_scheduler import RolloutScheduler
from tests.dst.engine_group import start_engine_group
from tests.dst.engines import FaultyEngine
from tests.dst.environments import endless_tasks
from tests.dst.world import World


class Coordinator:
    """Made from the tables, and from what the engines hold, whenever it starts.

    Args:
        engines: all inference workers.
        buffered: the buffer.
        emit: where events go.
        incarnation: counts the coordinators of a run.
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
        self.fleet = start_engine_group(world, engines, emit)
        self.scheduler = RolloutScheduler(
            endless_tasks(recovered.next_cursor),
            plan.settings,
            plan.schedule.bound,
            emit,
            admission=plan.schedule.admission,
            version=self.fleet.version,
            incarnation=incarnation,
        )
        self.scheduler.restore(recovered.groups, recovered.next_cursor)
        first_step = tables.published + 1
        self.controller = AsyncController(
            buffered,
            self.fleet,
            self.scheduler,
            plan.schedule,
            emit,
            batch_size=plan.batch_size,
            steps=plan.steps,
            first_step=first_step,
            served=self.fleet.version,
            pending=tables.batches.get(first_step),
        )
        if tables.published >= plan.steps:
            self.scheduler.stop()  # nobody will ask for another batch

    async def follow(self, cursor: int) -> None:
        """Tell the scheduler what the buffer did, from a cursor on."""
        while True:
            cursor, changes = await self._buffered.changes(cursor)
            for change in changes:
                self.scheduler.apply(change)

"""The real ControlPlane of a coordinator over engines that fail, watched by the monitor.

The invariant: the monitor knows the served version before any engine may sample under it.
"""

from collections.abc import Callable, Sequence
from functools import partial

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.plane import ControlPlane, EngineWorkers, PlaneSettings, PlaneState
from rollart_flow.control.protocols import Buffered, Emit, PullStats
from rollart_flow.types import Batch
from tests.dst.commands import NetworkCommands
from tests.dst.engines import FaultyEngine
from tests.dst.environments import endless_tasks
from tests.dst.world import World


class WatchedEngineGroup(EngineGroup):
    """The real engine group; it also tells the monitor which version its workers serve."""

    served: Callable[[int], None]

    async def update(self, version: int) -> PullStats:
        pull = await super().update(version)
        self.served(version)
        return pull


class Coordinator(ControlPlane):
    """The real control plane, restored from the tables and from the state of the engines.

    Args:
        engines: all inference workers, dead ones included.
        buffered: the buffer.
        emit: receives events.
        incarnation: number of the coordinator within a run.
        cursor: cursor from which the buffer's changes are read.
        formed: batch of the next step, if the buffer formed it and its manifest is not written.
        readable: newest version that is known to be readable; None if it is the last recorded one.
    """

    group_kind = WatchedEngineGroup

    def __init__(
        self,
        world: World,
        engines: Sequence[FaultyEngine],
        buffered: Buffered,
        emit: Emit,
        incarnation: int,
        cursor: int,
        formed: Batch | None = None,
        readable: int | None = None,
    ) -> None:
        plan, tables, workers = world.plan, world.tables, _workers(world, engines)
        served = partial(world.monitor.served, workers=engines)
        served(workers.version)
        super().__init__(
            PlaneSettings(plan.schedule, plan.settings, plan.steps),
            workers,
            endless_tasks,
            buffered,
            emit,
            PlaneState(
                trained=tables.published,
                control=tables.recovered(),
                untrained=tables.batches.get(tables.published + 1) or formed,
                incarnation=incarnation,
                cursor=cursor,
                published=readable,
            ),
        )
        assert isinstance(self.engines, WatchedEngineGroup)
        self.engines.served = served


def _workers(world: World, engines: Sequence[FaultyEngine]) -> EngineWorkers:
    """The workers of a coordinator that starts, for the first time or again.

    It takes over the version and the suspension of the workers that serve.
    """
    serving = [engine for engine in engines if engine.alive and engine.serves]
    return EngineWorkers(
        [NetworkCommands(engine, world) for engine in engines if not engine.gone],
        version=max((engine.version for engine in serving), default=world.tables.published),
        suspended=any(engine.suspended for engine in serving),
        sliding=[engine.worker for engine in engines[: world.plan.sliding]],
    )

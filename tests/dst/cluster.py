"""The control plane as it is deployed, among parts that fail.

The planes of `control.plane` and the BufferService are the real classes.
The invariant: a run is a function of its plan, and ends with an error or with every promise kept.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from rollart_flow.control.inference.health import HealthLimits
from rollart_flow.control.loop.waits import describe
from rollart_flow.control.plane import ControlPlane
from rollart_flow.control.protocols import Inference
from rollart_flow.control.schedule.declarations import Phase
from rollart_flow.errors import WeightsError
from rollart_flow.simulation.virtual_time import run
from rollart_flow.types import Batch, Event, EventKind
from tests.dst.coordinator import Coordinator
from tests.dst.engines import FaultyEngine
from tests.dst.network import Address, RemoteBuffer
from tests.dst.plans import Kill, Plan, Target
from tests.dst.process import BufferProcess
from tests.dst.rollout import Rollout
from tests.dst.stored import other_run
from tests.dst.tasks import Tasks
from tests.dst.training import Trainer
from tests.dst.world import World
from tests.pending import pending_ids

_SOURCES = 2
_HEALTH = HealthLimits(answer_s=8.0, start_s=20.0)


def simulate(plan: Plan, world: World | None = None) -> World:
    """Run a plan, and return the world that the run leaves.

    Args:
        plan: settings and faults of the run.
        world: the world of this plan, for callers that need it even if the run fails.

    Raises:
        InvariantError: a promise was broken.
        DeadlockError: everything waits, and no timer is set.
        RunFailedError: the control plane ended the run.
    """
    world = world or World(plan)
    ends = [kill.after_s for kill in plan.kills if kill.target is Target.EVERYTHING]
    with other_run(plan) as world.other:
        for life, killed_after_s in enumerate([*ends, None]):
            if run(_live(world, killed_after_s), seed=plan.seed + life, shuffle=True):
                break
    return world


async def _live(world: World, killed_after_s: float | None) -> bool:
    """Run one life: until the end of the run (True), or until everything is killed (False)."""
    world.log.begin_life()
    violated = world.monitor.begin_life()
    cluster = Cluster(world)
    ending = cluster.tasks.start(cluster.run(), "run")
    limit_s = world.plan.life_s if killed_after_s is None else killed_after_s
    ends = (ending, violated, cluster.tasks.failed)
    await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    error = world.monitor.error or cluster.tasks.error
    if error is None and killed_after_s is None and not ending.done():
        waits = describe(asyncio.get_running_loop())
        world.monitor.violated("progress", f"no end after {limit_s:g} s: {waits}")
    world.end_life()
    if error is not None:
        raise error
    if not ending.done():
        world.log.write("kill", "everything")
        world.monitor.killed()
    return ending.done()


class Cluster:
    """The processes of one life, started from the tables."""

    def __init__(self, world: World) -> None:
        self.tasks = Tasks()
        self._world = world
        self._network = world.network
        self._emit = world.emitter()
        self._incarnation = world.life << 16
        self._buffer: Address[BufferProcess] = Address("buffer")
        self._coordinator: Address[ControlPlane] = Address("coordinator")
        self._buffered = RemoteBuffer(self._buffer, self._network)
        self._engines = self._make_engines()
        self._rollout = Rollout(
            world,
            self.tasks,
            self._coordinator,
            self._buffer,
            self._engines,
            self._emit,
            self._recover,
        )
        self._trainer = Trainer(world, self._coordinator, self._buffer)
        self._serving: tuple[asyncio.Task[None], ...] = ()
        """Background tasks of the coordinator."""
        self._training: asyncio.Task[None] | None = None
        self._trained = asyncio.Event()

    def _make_engines(self) -> list[FaultyEngine]:
        world = self._world
        return [
            FaultyEngine(
                f"engine-{i}",
                world.tables.published,
                world.chance,
                world.plan.faults,
                world.monitor,
                world.log,
            )
            for i in range(world.plan.engines)
        ]

    async def _recover(self, worker: Inference) -> Sequence[Inference]:
        def revive(plane: ControlPlane) -> Coroutine[Any, Any, tuple[str, ...]]:
            return plane.revive(worker.worker)

        try:
            names = await self._network.call(self._coordinator, revive)
        except WeightsError as error:  # the pool would do without the worker for good
            self._world.monitor.violated("progress", f"{worker.worker} is not revived: {error}")
        return [engine for engine in self._engines if engine.worker in names]

    async def run(self) -> None:
        """Train all steps, and wait until every attempt that was admitted here has a row."""
        self._start_buffer()
        self._start_coordinator(cursor=0)
        for i in range(self._world.plan.hosts):
            self._rollout.start_host(f"host-{self._world.life}-{i}")
        for kill in self._world.plan.kills:
            self.tasks.start(self._kill(kill), f"kill {kill.target}")
        self._start_trainer()
        sources = (f"source-{self._world.life}-{i}" for i in range(_SOURCES))
        await asyncio.gather(*(self._rollout.source(name) for name in sources))
        await self._trained.wait()
        await self._rollout.all_acknowledged()
        self._trainer.draw_again()
        buffer = await self._buffer.reached()
        self._world.monitor.finished(self._rollout.admitted, pending_ids(buffer.service.index))

    # Starting processes, for the first time and again.

    def _start_buffer(self) -> None:
        self._incarnation += 1
        world = self._world
        self._buffer.move_in(
            BufferProcess(
                world.plan,
                world.tables,
                world.writer,
                world.monitor,
                world.log,
                self._emit,
                self._incarnation,
            )
        )

    def _report(self, event: Event) -> None:
        """Send an event of the coordinator to the buffer, which evicts abandoned groups."""
        self._emit(event)
        if event.kind is EventKind.ABANDON:
            note = partial(BufferProcess.note, event=event)
            call = self._network.call(self._buffer, note)
            self.tasks.start(call, f"report {event.subject}")

    def _start_coordinator(
        self, cursor: int, formed: Batch | None = None, readable: int | None = None
    ) -> None:
        self._incarnation += 1
        world, number = self._world, self._incarnation
        coordinator = Coordinator(
            world, self._engines, self._buffered, self._report, number, cursor, formed, readable
        )
        self._coordinator.move_in(coordinator)
        self._serving = (
            self.tasks.start(coordinator.follow(), "follow the buffer"),
            self.tasks.start(coordinator.watch(_HEALTH), "watch the engines"),
        )

    def _start_trainer(self) -> None:
        async def train() -> None:
            await self._trainer.run()
            self._trained.set()

        self._training = self.tasks.start(train(), "train")

    # Killing them.

    async def _kill(self, kill: Kill) -> None:
        if kill.target is Target.EVERYTHING:
            return
        await asyncio.sleep(kill.after_s)
        deaths: dict[Target, Callable[[float], Awaitable[None]]] = {
            Target.HOST: self._kill_a_host,
            Target.ENGINE: partial(self._kill_an_engine, for_good=False),
            Target.MACHINE: partial(self._kill_an_engine, for_good=True),
            Target.HANG: lambda down_s: self._hang_an_engine(),
            Target.COORDINATOR: self._kill_the_coordinator,
            Target.BUFFER: self._kill_the_buffer,
            Target.TRAINER: self._kill_the_trainer,
        }
        await deaths[kill.target](kill.down_s)

    async def _kill_a_host(self, down_s: float) -> None:
        if names := self._rollout.hosts:
            name = self._world.chance.choice(names)
            self._world.log.write("kill", name)
            await self._rollout.kill_host(name, down_s)

    async def _kill_an_engine(self, down_s: float, *, for_good: bool) -> None:
        # One engine is always left to come back.
        alive = [engine for engine in self._engines[for_good:] if engine.alive]
        if not alive:
            return
        engine = self._world.chance.choice(alive)
        self._world.log.write("kill", engine.worker, "for good" if for_good else "")
        engine.die(for_good=for_good)
        await asyncio.sleep(down_s)
        if not for_good:
            self._world.log.write("restart", engine.worker)
            engine.restart()

    async def _hang_an_engine(self) -> None:
        """Hang an engine; health checks find it."""
        if alive := [engine for engine in self._engines if engine.alive]:
            engine = self._world.chance.choice(alive)
            self._world.log.write("kill", engine.worker, "hangs")
            engine.hang()

    async def _kill_the_coordinator(self, down_s: float) -> None:
        """Kill the coordinator; it restarts from the tables, and rollout workers report to it."""
        coordinator = self._coordinator.resident
        if coordinator is None:
            return
        self._go_down("coordinator")
        self._coordinator.vacate()  # first: a dead process answers nobody that the run is over
        coordinator.polls.close()
        await coordinator.controller.close()
        for task in self._serving:
            task.cancel()
        await asyncio.sleep(down_s)
        index = (await self._buffer.reached()).service.index
        recorded = self._world.tables.published
        cursor, formed = index.cursor, await index.formed(recorded + 1)
        # Versions are published one at a time, so the one before the newest is readable.
        beside = Phase.UPDATE in self._world.plan.schedule.before_training
        self._start_coordinator(cursor, formed, max(0, recorded - 1) if beside else None)
        self._world.log.write("restart", "coordinator")
        self._world.monitor.came_back()

    async def _kill_the_buffer(self, down_s: float) -> None:
        buffer = self._buffer.resident
        if buffer is None:
            return
        self._go_down("buffer")
        self._buffer.vacate()
        self._world.monitor.lost(self._world.tables.lose(buffer.die()))
        await asyncio.sleep(down_s)
        self._start_buffer()
        self._world.log.write("restart", "buffer")
        self._world.monitor.came_back()

    async def _kill_the_trainer(self, down_s: float) -> None:
        training = self._training
        if training is None or training.done():
            return
        self._training = None
        training.cancel()
        self._world.log.write("kill", "trainer")
        await asyncio.sleep(down_s)
        self._start_trainer()

    def _go_down(self, name: str) -> None:
        self._world.log.write("kill", name)
        self._world.monitor.went_down()

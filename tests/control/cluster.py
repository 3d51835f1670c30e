"""All control-plane classes wired together as they are deployed, over a network with faults.

What is durable in a real run is a `Record` here: rows, events, batches and published versions.
Coordinator and buffer may die at any moment and are restored from it; so may everything.
"""

import asyncio
import sys
from dataclasses import dataclass, field
from functools import partial
from random import Random

from rollart_flow.control.buffer import SampleBuffer
from rollart_flow.control.controller import AsyncController
from rollart_flow.control.dispatch import Dispatch
from rollart_flow.control.env_manager import EnvManager, Limits
from rollart_flow.control.host import RolloutHost
from rollart_flow.control.intake import RolloutSettings
from rollart_flow.control.proxy import LLMProxy
from rollart_flow.control.recovery import Recovered, recover
from rollart_flow.control.scheduler import RolloutScheduler
from rollart_flow.control.schedules import Schedule
from rollart_flow.control.waits import Signal, waiting
from rollart_flow.simulation import run
from rollart_flow.types import Assignment, Batch, Sampling, Trajectory
from tests.control.simulated import (
    STOP,
    Address,
    EnvironmentFaults,
    EventLog,
    FakeCodec,
    FakeEngine,
    FakeEnvironment,
    FakeInferenceControl,
    Network,
    RemoteAdmission,
    RemoteBuffer,
    endless_tasks,
    sample_of,
    wall,
)

SAMPLING = Sampling(max_tokens=8, stop_token_ids=(STOP,))
LIMITS = Limits(max_turns=6, context_tokens=120, step_timeout_s=5, trajectory_timeout_s=30)
HOSTS = 3
SLOTS = 8
TRAIN_S = 2.0


@dataclass
class Faults:
    """What goes wrong."""

    lost: float = 0.0
    repeated: float = 0.0
    environment: EnvironmentFaults = field(default_factory=EnvironmentFaults)
    hosts: int = 0
    """Hosts that die during the run."""
    engines: int = 0
    """Engines that die during the run."""
    coordinators: int = 0
    """Times that scheduler and controller die together."""
    buffers: int = 0
    """Times that the buffer dies."""


@dataclass
class Record:
    """What a run left behind."""

    batches: dict[int, Batch] = field(default_factory=dict)
    trained: list[int] = field(default_factory=list)
    published: int = 0
    admitted: list[Assignment] = field(default_factory=list)
    rows: dict[str, Trajectory] = field(default_factory=dict)
    events: EventLog = field(default_factory=EventLog)
    pending: int = 0
    """Trajectories that the buffer still held at the end."""
    largest_buffer: int = 0
    most_credits: int = 0
    seconds: float = 0.0

    def recovered(self) -> Recovered:
        """What a restart makes of it."""
        samples = [sample_of(row) for row in self.rows.values()]
        trained_groups = [g for batch in self.batches.values() for g in batch.group_ids]
        return recover(self.events.events, samples, trained_groups)


class Cluster:
    """Sources, hosts with slots, engines, a buffer and a trainer.

    Args:
        record: what an earlier cluster left behind; this one goes on from there.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        seed: int,
        faults: Faults,
        settings: RolloutSettings,
        steps: int,
        record: Record | None = None,
    ) -> None:
        self.chance = Random(seed)
        self.record = record or Record()
        self.faults = faults
        self.schedule = schedule
        self.steps = steps
        self.settings = settings
        self.network = Network(self.chance, lost=faults.lost, repeated=faults.repeated)
        self.incarnation = 1
        self.engines = [FakeEngine(f"engine-{i}", "H20", self.chance) for i in range(3)]
        for engine in self.engines:
            engine.version = self.record.published
        self.buffer = Address(self._make_buffer())
        self.scheduler = Address(self._make_scheduler())
        self.controller = Address(self._make_controller())
        self.admission = RemoteAdmission(self.scheduler, self.network)
        self.queue: asyncio.Queue[Assignment] = asyncio.Queue()
        self.room = Signal()
        self.committed = Signal()
        self.host_tasks: dict[str, asyncio.Task[None]] = {}
        self.hosts: dict[str, RolloutHost] = {}
        self.admitted: set[str] = set()
        self.running: dict[str, list[Assignment]] = {}
        self.commits: dict[asyncio.Task[None], None] = {}
        stages = schedule.stages
        self.scoring = asyncio.Semaphore(sys.maxsize if stages is None else stages.reward)
        self.feed = asyncio.create_task(self._feed_scheduler(0), name="feed")

    def _make_buffer(self) -> SampleBuffer:
        buffer = SampleBuffer(
            self.schedule.bound,
            self.settings.group_size,
            self.record.events,
            selection=self.schedule.selection,
            cursor=self.incarnation << 32,
        )
        recovered = self.record.recovered()
        buffer.restore(
            recovered.pending,
            batches=self.record.batches.values(),
            known=recovered.known,
            closed=recovered.closed,
            changes=recovered.changes,
        )
        return buffer

    def _make_scheduler(self) -> RolloutScheduler:
        recovered = self.record.recovered()
        scheduler = RolloutScheduler(
            endless_tasks(recovered.next_cursor),
            self.settings,
            self.schedule.bound,
            self.record.events,
            admission=self.schedule.admission,
            version=self.engines[-1].version,
            incarnation=self.incarnation,
        )
        scheduler.restore(recovered.groups)
        return scheduler

    def _make_controller(self) -> AsyncController:
        first_step = self.record.published + 1
        return AsyncController(
            RecordedBuffer(self),
            FakeInferenceControl(self.engines, self.network.delay),
            self.scheduler.resident,
            self.schedule,
            self.record.events,
            batch_size=self.settings.batch_size,
            steps=self.steps,
            first_step=first_step,
            served=self.engines[-1].version,
            pending=self.record.batches.get(first_step),
        )

    async def run(self) -> Record:
        """Train all steps; returns once every attempt that was admitted here has a row."""
        background = [asyncio.create_task(self._make_trouble(), name="trouble")]
        for i in range(HOSTS):
            self._start_host(f"host-{self.incarnation}-{i}")
        sources = [asyncio.create_task(self._source(f"source-{i}")) for i in range(2)]
        try:
            await self._train()
            await asyncio.gather(*sources)
            while not self.admitted <= self.record.rows.keys():
                with waiting("the rows of all admitted attempts"):
                    await self.committed.wait()
            self.record.pending = len(self.buffer.resident)
            self.record.seconds = asyncio.get_running_loop().time()
        finally:
            await self._end([*background, *sources, self.feed])
        return self.record

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        tasks += [*self.host_tasks.values(), *self.commits]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.network.close()

    async def _feed_scheduler(self, cursor: int) -> None:
        buffered = RemoteBuffer(self.buffer, self.network)
        while True:
            cursor, changes = await buffered.changes(cursor)
            scheduler = self.scheduler.resident
            for change in changes:
                scheduler.apply(change)
            self.record.most_credits = max(self.record.most_credits, len(scheduler.credits))

    async def _source(self, name: str) -> None:
        index = 0
        while (assignment := await self.admission.admit(name, index)) is not None:
            self.record.admitted.append(assignment)
            self.admitted.add(assignment.trajectory_id)
            self.queue.put_nowait(assignment)
            index += 1
            # Ray Data hands blocks over when the next operator has room.
            while self.queue.qsize() > SLOTS:
                await self.room.wait()

    def _start_host(self, name: str) -> None:
        dispatch = Dispatch.of(self.schedule)
        self.hosts[name] = RolloutHost(name, self.admission, dispatch=dispatch)
        self.host_tasks[name] = asyncio.create_task(self._host(self.hosts[name]), name=name)

    async def _host(self, host: RolloutHost) -> None:
        proxy = LLMProxy(self.engines, self.record.events, hw_affinity={"default": "H20"})
        try:
            await asyncio.gather(*(self._slot(host, proxy) for _ in range(SLOTS)))
        finally:
            await host.close()

    async def _slot(self, host: RolloutHost, proxy: LLMProxy) -> None:
        while True:
            assignment = await self.queue.get()
            self.room.notify()
            mine = self.running.setdefault(host.name, [])
            mine.append(assignment)
            manager = EnvManager(
                assignment,
                lambda: FakeEnvironment(self.chance, self.faults.environment),
                FakeCodec(),
                proxy,
                LIMITS,
                wall,
                admission=self.admission,
                host=host.name,
                dispatch=host.dispatch,
            )
            trajectory = await host.run(manager)
            mine.remove(assignment)
            self._commit_later(trajectory)

    def _commit_later(self, trajectory: Trajectory) -> None:
        copies = 2 if self.chance.random() < self.faults.repeated else 1
        for _ in range(copies):
            task = asyncio.create_task(self._commit(trajectory))
            self.commits[task] = None
            task.add_done_callback(lambda done: self.commits.pop(done))

    async def _commit(self, trajectory: Trajectory) -> None:
        """Score, write, tell the buffer."""
        async with self.scoring:
            await asyncio.sleep(self.chance.expovariate(1 / 0.3))
        buffer = self.buffer.resident
        if not buffer.knows(trajectory.trajectory_id):
            assert trajectory.trajectory_id not in self.record.rows
            self.record.rows[trajectory.trajectory_id] = trajectory
        buffer.put(sample_of(trajectory))
        self.committed.notify()
        self.record.largest_buffer = max(self.record.largest_buffer, len(buffer))

    async def _train(self) -> None:
        step = self.record.published + 1
        while await self._next_batch(step) is not None:
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * TRAIN_S)
            self.record.trained.append(step)
            self.record.published = step
            trained = partial(AsyncController.trained, step=step)
            await self.network.call(self.controller, trained)
            step += 1

    async def _next_batch(self, step: int) -> Batch | None:
        next_batch = partial(AsyncController.next_batch, step=step)
        batch = await self.network.call(self.controller, next_batch)
        assert batch is None or batch == self.record.batches[step]
        return batch

    async def _make_trouble(self) -> None:
        deaths = [self._kill_a_host] * self.faults.hosts
        deaths += [self._kill_an_engine] * self.faults.engines
        deaths += [self._kill_the_coordinator] * self.faults.coordinators
        deaths += [self._kill_the_buffer] * self.faults.buffers
        self.chance.shuffle(deaths)
        for death in deaths:
            await asyncio.sleep(self.chance.expovariate(1 / 2.0))
            await death()

    async def _kill_a_host(self) -> None:
        """Ray notices the death, starts an actor and runs the lost tasks again."""
        name = self.chance.choice(sorted(self.host_tasks))
        task = self.host_tasks.pop(name)
        del self.hosts[name]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._start_host(f"{name}'")
        await self.network.delay()
        self.scheduler.resident.host_lost(name)
        for assignment in self.running.pop(name, []):
            self.queue.put_nowait(assignment)

    async def _kill_an_engine(self) -> None:
        alive = [engine for engine in self.engines[:-1] if not engine.dead]
        if alive:
            self.chance.choice(alive).dead = True

    async def _kill_the_coordinator(self) -> None:
        """Scheduler and controller start over from the tables, and hosts report to them."""
        self.feed.cancel()
        self.incarnation += 1
        cursor = self.buffer.resident.cursor
        self.scheduler.replace(self._make_scheduler())
        self.controller.replace(self._make_controller())
        self.feed = asyncio.create_task(self._feed_scheduler(cursor), name="feed")
        for host in list(self.hosts.values()):
            await host.reconnect()

    async def _kill_the_buffer(self) -> None:
        self.incarnation += 1
        self.buffer.replace(self._make_buffer())


class RecordedBuffer(RemoteBuffer):
    """The buffer's process writes a batch down before it answers."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.buffer, cluster.network)
        self._record = cluster.record

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        async def form(buffer: SampleBuffer) -> Batch:
            batch = await buffer.get_batch(step, version, size)
            assert self._record.batches.setdefault(step, batch) == batch
            return batch

        return await self._network.call(self._buffer, form)


def settings_of(batch_size: int = 16, group_size: int = 4, **more: int) -> RolloutSettings:
    """Settings for simulated runs."""
    redundancy, extra = more.pop("redundancy", 0), more.pop("extra_groups", 0)
    return RolloutSettings(batch_size, group_size, redundancy, extra, sampling=SAMPLING)


def simulate(
    schedule: Schedule,
    *,
    seed: int,
    steps: int = 6,
    faults: Faults | None = None,
    settings: RolloutSettings | None = None,
    record: Record | None = None,
    killed_after_s: float | None = None,
) -> Record:
    """One run under virtual time; a function of its arguments.

    Args:
        record: goes on from what an earlier run left behind.
        killed_after_s: the moment at which everything dies; None for never.
    """
    left = record or Record()

    async def main() -> Record:
        cluster = Cluster(
            schedule,
            seed=seed,
            faults=faults or Faults(),
            settings=settings or settings_of(),
            steps=steps,
            record=left,
        )
        try:
            async with asyncio.timeout(killed_after_s):
                return await cluster.run()
        except TimeoutError:
            return left

    return run(main(), seed=seed, shuffle=True)

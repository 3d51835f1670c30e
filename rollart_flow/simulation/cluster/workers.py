"""The inference workers of a simulated run, transfers of weights, and the machine they share.

The invariants: versions cross the link one after the other, and all workers that serve swap to a
version at the same time; without measurements there are no delays, and a step takes exactly the
seconds of its work.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.loop.waits import Signal
from rollart_flow.control.plane import ControlPlane, EngineWorkers
from rollart_flow.control.protocols import EngineCommands, Inference, PullStats
from rollart_flow.simulation.measured import Measured
from rollart_flow.simulation.models.engine import DisaggregatedEngine, MakeEngine, SimulatedEngine
from rollart_flow.simulation.record import Activity, ActivitySpan, PoolTimes
from rollart_flow.simulation.scenario import Scenario
from rollart_flow.timeouts import timeout

T = TypeVar("T")


class WeightTransfers:
    """The times of all transfers of weights, which it records; `workers` read each version."""

    def __init__(self, scenario: Scenario, workers: int) -> None:
        self._scenario = scenario
        self._workers = workers
        self._link = asyncio.Lock()
        self._pulled = 0
        self._pull: asyncio.Task[None] | None = None
        self._suspended_at: float | None = None
        self.exposed_s: list[float] = []
        """Part of each pull that no rollout hides [s]."""
        self.spans: list[ActivitySpan] = []

    async def push(self) -> None:
        """Bring a version from the training workers to the store; pushes queue."""
        async with self._link:
            await self._spend(Activity.PUSH, self._scenario.push_s)

    async def pull(self, version: int) -> PullStats:
        """Wait for the part of a pull that no rollout hides, which all workers share."""
        scenario = self._scenario
        if version > self._pulled:
            self._pulled = version
            self.exposed_s.append(scenario.exposed_s)
            exposed = self._spend(Activity.UPDATE, scenario.exposed_s)
            self._pull = asyncio.create_task(exposed, name=f"pull({version})")
        if self._pull is not None:
            await asyncio.shield(self._pull)
        return PullStats(scenario.pull_s / self._workers, scenario.exposed_s)

    def suspended(self) -> None:
        if self._suspended_at is None:
            self._suspended_at = asyncio.get_running_loop().time()

    def resumed(self) -> None:
        if self._suspended_at is not None:
            now = asyncio.get_running_loop().time()
            self.spans.append(ActivitySpan(Activity.SUSPEND, self._suspended_at, now))
            self._suspended_at = None

    async def _spend(self, activity: Activity, seconds: float) -> None:
        start = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        self.spans.append(ActivitySpan(activity, start, start + seconds))


class SimulatedCommands:
    """Implements `control.protocols.EngineCommands` for a simulated engine, which never fails."""

    def __init__(
        self, engine: SimulatedEngine, transfers: WeightTransfers, proxies: Sequence[LLMProxy]
    ) -> None:
        self._engine = engine
        self._transfers = transfers
        self._proxies = proxies
        self._version = 0

    @property
    def name(self) -> str:
        return self._engine.worker

    async def suspend(self) -> None:
        self._engine.suspend()
        self._transfers.suspended()

    def prefetch(self, version: int) -> None:
        """Do nothing: `update` waits for the part of a pull that no rollout hides."""

    async def update(self, version: int) -> PullStats:
        if version == self._version:
            return PullStats()
        self._version = version
        return await self._transfers.pull(version)

    async def serve(self, version: int) -> bool:
        self._version = version
        self._transfers.resumed()
        if self._engine.away_at is None:
            self._engine.resume(version)
        else:
            self._engine.come_back(version)
            for proxy in self._proxies:
                proxy.add(self._engine)
        return False

    async def release(self) -> int:
        return 0

    async def leave(self) -> int:
        # Proxies hear of it first, since requests would otherwise try one worker after the other.
        for proxy in self._proxies:
            proxy.remove(self.name)
        self._engine.leave()
        return 0

    async def ping(self) -> None:
        """Answer at once."""

    def restart(self) -> None:
        """Do nothing: a simulated engine does not hang."""


class InstantEngineGroup(EngineGroup):
    """The real engine group, whose commands reach every worker at the instant they are given."""

    async def _together(self, answers: Iterable[Awaitable[T]]) -> list[T]:
        return [await answer for answer in answers]

    async def _reach(
        self, worker: EngineCommands, command: str, ask: Callable[[EngineCommands], Awaitable[T]]
    ) -> T | None:
        return await ask(worker)


class SimulatedPlane(ControlPlane):
    """The real control plane over workers that obey without delay."""

    group_kind = InstantEngineGroup


class SimulatedWorkers:
    """All inference workers of a run; training lends the devices of the `sliding` ones."""

    def __init__(
        self,
        engines: Sequence[SimulatedEngine],
        sliding: Sequence[SimulatedEngine],
        scenario: Scenario,
    ) -> None:
        self.engines = engines
        self.sliding = sliding
        self._all = (*engines, *sliding)
        self._proxies: list[LLMProxy] = []
        self.transfers = WeightTransfers(scenario, len(self._all))
        every = [SimulatedCommands(each, self.transfers, self._proxies) for each in self._all]
        self.commanded = EngineWorkers(every, sliding=[engine.worker for engine in sliding])

    def tell(self, proxy: LLMProxy) -> None:
        """Report to a proxy, from now on, whether the sliding engines serve."""
        self._proxies.append(proxy)
        for engine in self.sliding:
            if engine.away_at is not None:
                proxy.remove(engine.worker)

    def times(self) -> dict[str, PoolTimes]:
        """Counters of all engines up to now, by hardware class."""
        pools: dict[str, list[SimulatedEngine]] = defaultdict(list)
        for engine in self._all:
            engine.settle()
            pools[engine.hardware].append(engine)
        return {
            hardware: PoolTimes(
                sum(e.devices for e in members),
                sum(e.devices * e.batch.prefill_s for e in members),
                sum(e.devices * e.batch.decode_s for e in members),
                sum(e.devices * e.suspended_s for e in members),
                sum(e.devices * e.away_s for e in members),
                sum(e.batch.recomputed_tokens for e in members),
                sum(e.batch.sampled_tokens for e in members),
            )
            for hardware, members in pools.items()
        }


def make_workers(scenario: Scenario, make: MakeEngine) -> tuple[SimulatedWorkers, list[Inference]]:
    """All inference workers, and those of them that requests go to."""
    parts = scenario.disaggregated
    engines: list[SimulatedEngine] = []
    for part, (model, count) in enumerate(scenario.workers()):
        first = len(engines)
        stored = parts is not None and part == 0
        names = (f"{model.hardware}-{first + i:04d}" for i in range(count))
        engines += [make(name, model, stored=stored) for name in names]
    count = scenario.sliding // scenario.tensor_parallel
    roofline = scenario.roofline(scenario.training.device, scenario.tensor_parallel)
    sliding = [make(f"sliding-{i:04d}", roofline, stored=False) for i in range(count)]
    serving: list[Inference] = [*engines, *sliding]
    if parts is not None:
        split = parts.prefill.devices // parts.degree
        ends = engines[:split], engines[split:]
        serving = [DisaggregatedEngine(*ends, parts.link_gb_s, scenario.model.kv_bytes)]
    return SimulatedWorkers(engines, sliding, scenario), serving


class SharedMachine:
    """The delays that a stored run adds to attempts and steps; none without measurements.

    Attempts start one by one; training is slower while attempts run, and engines and launches are
    slower while a step trains.
    """

    def __init__(
        self, measured: Measured | None, engines: Sequence[SimulatedEngine], seed: int
    ) -> None:
        self._measured = measured
        self._engines = engines
        self._running = 0
        self._trains = False
        self._changed = Signal()
        self._gate = asyncio.Lock()
        if measured is not None:
            self._launch_s = measured.launch_s.play(f"{seed}/launch")
            self._deviation = measured.training.deviations.play(f"{seed}/training")

    async def start_attempt(self) -> None:
        """Wait until one more attempt may start; it runs until `end_attempt`."""
        if self._measured is not None:
            async with self._gate:
                stretch = self._measured.launch_stretch if self._trains else 0.0
                await asyncio.sleep(next(self._launch_s) * (1 + stretch))
        self._running += 1
        if self._running == 1:
            self._changed.notify()

    def end_attempt(self) -> None:
        self._running -= 1
        if self._running == 0:
            self._changed.notify()

    async def train(self, work_s: float) -> None:
        """Wait for as long as this work takes beside the running attempts [s]."""
        if self._measured is None:
            await asyncio.sleep(work_s)
            return
        self._trains = True
        for engine in self._engines:
            engine.pace(1 + self._measured.engine_stretch)
        apart_s = self._measured.training.apart_s
        await asyncio.sleep(apart_s)
        left = (work_s - apart_s) * next(self._deviation)
        while left > 0:
            left = await self._train_until_change(left, self._measured.training_stretch)
        for engine in self._engines:
            engine.pace(1.0)
        self._trains = False

    async def _train_until_change(self, left_s: float, stretch: float) -> float:
        """Train until the load changes or the work is done; the work that is left [s]."""
        loop = asyncio.get_running_loop()
        suspended = all(engine.batch.suspended for engine in self._engines)
        factor = 1 + stretch if self._running and not suspended else 1.0
        started = loop.time()
        try:
            async with timeout(left_s * factor):
                await self._changed.wait()
        except TimeoutError:
            return 0.0
        return left_s - (loop.time() - started) / factor

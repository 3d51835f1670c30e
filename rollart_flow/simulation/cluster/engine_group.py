"""The inference workers of a simulated run, and the transfer of weights to them.

The invariant: versions cross the link one after the other, and all serving workers hold the same
version.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.control.protocols import PullStats
from rollart_flow.simulation.models.engine import SimulatedEngine
from rollart_flow.simulation.record import Activity, ActivitySpan, PoolTimes
from rollart_flow.simulation.scenario import Scenario


class SimulatedEngineGroup:
    """The protocol `InferenceControl` over simulated engines.

    Args:
        engines: the engines that serve all the time.
        sliding: the engines whose devices are lent by training.
        scenario: tells the times of transfers.
    """

    def __init__(
        self,
        engines: Sequence[SimulatedEngine],
        sliding: Sequence[SimulatedEngine],
        scenario: Scenario,
    ) -> None:
        self.engines = list(engines)
        self.sliding = list(sliding)
        self._scenario = scenario
        self._link = asyncio.Lock()
        self._served = 0
        self._proxies: list[LLMProxy] = []
        self.at_training = False
        self.exposed_s: list[float] = []
        self.spans: list[ActivitySpan] = []
        self._suspended_at = 0.0

    @property
    def serving(self) -> list[SimulatedEngine]:
        """The engines that serve now."""
        return self.engines if self.at_training else [*self.engines, *self.sliding]

    def times(self) -> dict[str, PoolTimes]:
        """Counters of all engines up to now, by hardware class."""
        pools: dict[str, list[SimulatedEngine]] = defaultdict(list)
        for engine in (*self.engines, *self.sliding):
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

    async def push(self) -> None:
        """Bring a version from the training workers to the store; pushes queue."""
        async with self._link:
            await self._spend(Activity.PUSH, self._scenario.push_s)

    async def suspend(self) -> None:
        """Hold new requests and pause the requests in flight."""
        self._suspended_at = asyncio.get_running_loop().time()
        for engine in self.serving:
            engine.suspend()

    def prefetch(self, version: int) -> None:
        """Do nothing: `update` waits for the part of a pull that no rollout hides."""

    async def update(self, version: int) -> PullStats:
        """Bring a version to all workers; wait for the part of the pull that no rollout hides."""
        if version <= self._served:
            return PullStats()
        self._served, scenario = version, self._scenario
        self.exposed_s.append(scenario.exposed_s)
        await self._spend(Activity.UPDATE, scenario.exposed_s)
        return PullStats(scenario.pull_s, scenario.exposed_s)

    async def resume(self) -> None:
        """Continue generation; KV caches are rebuilt."""
        for engine in self.serving:
            engine.resume(self._served)
        now = asyncio.get_running_loop().time()
        self.spans.append(ActivitySpan(Activity.SUSPEND, self._suspended_at, now))

    async def _spend(self, activity: Activity, seconds: float) -> None:
        """Let time pass, and record the activity."""
        start = asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        self.spans.append(ActivitySpan(activity, start, start + seconds))

    def tell(self, proxy: LLMProxy) -> None:
        """Report to a proxy, from now on, whether the sliding engines serve."""
        self._proxies.append(proxy)
        if self.at_training:
            for engine in self.sliding:
                proxy.remove(engine.worker)

    async def to_training(self) -> None:
        """Lend the sliding devices to training: their requests continue on other workers."""
        if self.sliding and not self.at_training:
            self.at_training = True
            for engine in self.sliding:
                for proxy in self._proxies:
                    proxy.remove(engine.worker)
                engine.leave()

    async def to_rollout(self) -> None:
        """Take the sliding devices back from training."""
        if self.at_training:
            self.at_training = False
            for engine in self.sliding:
                engine.come_back(self._served)
                for proxy in self._proxies:
                    proxy.add(engine)

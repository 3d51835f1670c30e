"""All inference workers of a simulated run, and how weights reach them.

The invariant: a version is served only after it was pushed, and by all workers that serve.
"""

import asyncio
from collections.abc import Sequence

from rollart_flow.control.proxy import LLMProxy
from rollart_flow.control.waits import Signal, waiting
from rollart_flow.simulation.engine import SimulatedEngine
from rollart_flow.simulation.scenario import Scenario


class Fleet:
    """Implements the port `InferenceControl`.

    Args:
        engines: those that serve all the time.
        sliding: those that leave for training.
        scenario: how long a pull takes.
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
        self._pushing = 0
        self._pushed = 0
        self._push_ended = Signal()
        self._served = 0
        self._proxies: list[LLMProxy] = []
        self.at_training = False
        self.exposed_s: list[float] = []

    @property
    def serving(self) -> list[SimulatedEngine]:
        """Engines that serve now."""
        return self.engines if self.at_training else [*self.engines, *self.sliding]

    async def push(self, version: int) -> None:
        """Bring a version from the training workers to the store."""
        self._pushing = version
        await asyncio.sleep(self._scenario.transfer.push_s(self._scenario.model))
        self._pushed = version
        self._push_ended.notify()

    async def suspend(self) -> None:
        """Hold new requests and pause those in flight, once the newest weights are in the store:
        before that there is nothing to suspend for."""
        while self._pushed < self._pushing:
            with waiting(f"push({self._pushing})"):
                await self._push_ended.wait()
        for engine in self.serving:
            engine.suspend()

    async def update(self, version: int) -> None:
        """Bring a version to all workers; returns after what no rollout could hide."""
        if version > self._served:
            degree = self._scenario.tensor_parallel
            seconds = self._scenario.transfer.exposed_s(self._scenario.model, degree)
            self.exposed_s.append(seconds)
            await asyncio.sleep(seconds)
        self._served = version

    async def resume(self) -> None:
        """Go on; KV caches are rebuilt."""
        for engine in self.serving:
            engine.resume(self._served)

    def tell(self, proxy: LLMProxy) -> None:
        """A proxy is to know from now on which of the sliding devices serve."""
        self._proxies.append(proxy)
        if self.at_training:
            for engine in self.sliding:
                proxy.remove(engine.worker)

    def to_training(self) -> None:
        """The sliding devices train: what is in flight there goes on elsewhere."""
        if self.sliding and not self.at_training:
            self.at_training = True
            for engine in self.sliding:
                for proxy in self._proxies:
                    proxy.remove(engine.worker)
                engine.leave()

    def to_rollout(self) -> None:
        """The sliding devices serve again."""
        if self.at_training:
            self.at_training = False
            for engine in self.sliding:
                engine.come_back(self._served)
                for proxy in self._proxies:
                    proxy.add(engine)

"""The machine that rollout and training share, as far as a stored run showed it.

Attempts start one by one; training is slower while attempts run, and engines are slower
while a step trains. The invariant: without measurements there are no delays, and a step takes
exactly the seconds of its work.
"""

import asyncio
from collections.abc import Sequence

from rollart_flow.control.loop.waits import Signal
from rollart_flow.simulation.measured import Measured
from rollart_flow.simulation.models.engine import SimulatedEngine


class SharedMachine:
    """The delays that a stored run adds to attempts and steps; none without measurements."""

    def __init__(
        self, measured: Measured | None, engines: Sequence[SimulatedEngine], seed: int
    ) -> None:
        self._measured = measured
        self._engines = engines
        self._running = 0
        self._changed = Signal()
        self._gate = asyncio.Lock()
        if measured is not None:
            self._launch_s = measured.launch_s.play(f"{seed}/launch")
            self._deviation = measured.training.deviations.play(f"{seed}/training")

    async def start_attempt(self) -> None:
        """Wait until one more attempt may start; it runs until `end_attempt`."""
        if self._measured is not None:
            async with self._gate:
                await asyncio.sleep(next(self._launch_s))
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
        for engine in self._engines:
            engine.pace(1 + self._measured.engine_stretch)
        left = work_s * next(self._deviation)
        while left > 0:
            left = await self._train_until_change(left, self._measured.training_stretch)
        for engine in self._engines:
            engine.pace(1.0)

    async def _train_until_change(self, left_s: float, stretch: float) -> float:
        """Train until the load changes or the work is done; the work that is left [s]."""
        loop = asyncio.get_running_loop()
        suspended = all(engine.batch.suspended for engine in self._engines)
        factor = 1 + stretch if self._running and not suspended else 1.0
        started = loop.time()
        try:
            async with asyncio.timeout(left_s * factor):
                await self._changed.wait()
        except TimeoutError:
            return 0.0
        return left_s - (loop.time() - started) / factor

"""All inference workers, as the coordinator commands them over a network.

What `operators.ports.ClusterControl` does. The invariant: a worker that was restarted draws its
first token under the version that the others serve, and none while they are suspended.
"""

import asyncio
from collections.abc import Sequence

from rollart_flow.control.waits import Signal, waiting
from rollart_flow.errors import RunFailedError, WeightsError
from rollart_flow.simulation.fuzz.engines import FaultyEngine
from rollart_flow.simulation.fuzz.log import Log
from rollart_flow.simulation.fuzz.monitor import Monitor
from rollart_flow.simulation.fuzz.network import Network
from rollart_flow.simulation.fuzz.weights import FaultyWeightStore

_AGAIN_S = 0.2


class Fleet:
    """Implements `control.ports.InferenceControl`.

    Args:
        engines: all workers, dead ones included.
        version: what they serve; taken over from them where any serves.
    """

    def __init__(
        self,
        engines: Sequence[FaultyEngine],
        version: int,
        weights: FaultyWeightStore,
        network: Network,
        monitor: Monitor,
        log: Log,
    ) -> None:
        self._engines = engines
        self._workers = {engine.worker: engine for engine in engines if not engine.gone}
        serving = [engine for engine in engines if engine.alive and engine.serves]
        self.version = max((engine.version for engine in serving), default=version)
        self._suspended = any(engine.suspended for engine in serving)
        self._weights = weights
        self._network = network
        self._monitor = monitor
        self._log = log
        self._commands = asyncio.Lock()
        self._resumed = Signal()
        monitor.served(self.version, engines)

    async def suspend(self) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            self._suspended = True
            await asyncio.gather(*(self._suspend(engine) for engine in self._reachable))

    async def update(self, version: int) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            self.version = version
            await asyncio.gather(*(self._hold(engine) for engine in self._reachable))
            self._monitor.served(version, self._engines)

    async def resume(self) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            await asyncio.gather(*(self._serve(engine) for engine in self._reachable))
            self._suspended = False
            self._resumed.notify()

    async def revive(self, name: str) -> bool:
        """Wait until a worker that was lost serves again; False where it never will."""
        while True:
            async with self._commands:
                if not self._suspended:
                    if name in self._workers:
                        await self._serve(self._workers[name])
                    return name in self._workers
            with waiting(f"resume, to revive {name}"):
                await self._resumed.wait()

    @property
    def _reachable(self) -> tuple[FaultyEngine, ...]:
        if not self._workers:
            raise RunFailedError("every engine has died for good")
        return tuple(self._workers.values())

    async def _reach(self, engine: FaultyEngine) -> bool:
        """One command on its way; False where the worker is gone, which is left out then."""
        await self._network.delay()
        if await engine.reachable():
            return True
        self._workers.pop(engine.worker, None)
        return False

    async def _suspend(self, engine: FaultyEngine) -> None:
        if await self._reach(engine):
            engine.suspend()

    async def _hold(self, engine: FaultyEngine) -> None:
        """Read the version from the store, until that succeeds, and swap to it."""
        while await self._reach(engine) and engine.version != self.version:
            process = engine.incarnation
            if not engine.serves:
                engine.suspend()
            try:
                version = await self._weights.read(self.version)
            except WeightsError as error:
                self._log.write("fault", engine.worker, detail=str(error))
                await asyncio.sleep(_AGAIN_S)
                continue
            if engine.alive and engine.incarnation == process:
                engine.load(version)

    async def _serve(self, engine: FaultyEngine) -> None:
        await self._hold(engine)
        while await self._reach(engine) and engine.version != self.version:
            await self._hold(engine)  # it died in between
        if engine.alive:
            engine.serve()

"""Commands to engines that fail, with a network between them."""

import asyncio

from rollart_flow.control.protocols import PullStats
from rollart_flow.errors import EngineError, WeightsError, WorkerLostError
from tests.dst.engines import FaultyEngine
from tests.dst.world import World

_RESTART_S = 0.5


class NetworkCommands:
    """The protocol `EngineCommands` of an engine behind a network."""

    def __init__(self, engine: FaultyEngine, world: World) -> None:
        self._engine = engine
        self._weights = world.weights
        self._network = world.network
        self._log = world.log
        self._reading: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self._engine.worker

    async def suspend(self) -> None:
        await self._arrive()
        self._engine.suspend()

    def prefetch(self, version: int) -> None:
        """Read a version from the store once; it is lost if the process ends before."""
        reading = asyncio.ensure_future(self._read_ahead(version))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)

    async def _read_ahead(self, version: int) -> None:
        engine, process = self._engine, self._engine.incarnation
        await self._network.delay()
        try:
            read = await self._weights.read(version)
        except WeightsError as error:
            self._log.write("fault", self.name, detail=str(error))
            return
        if engine.incarnation == process:
            engine.ahead = read

    async def update(self, version: int) -> PullStats:
        """Swap to a version that was read ahead, or read it with retries."""
        await self._arrive()
        while self._engine.version != version:
            await self._try_to_load(version)
            await self._arrive()
        return PullStats()

    async def serve(self, version: int) -> bool:
        await self.update(version)
        return self._engine.serve()

    async def release(self) -> int:
        """Release no memory: these engines hold none."""
        await self._arrive()
        return 0

    async def leave(self) -> int:
        await self._arrive()
        self._engine.leave()
        return 0

    async def ping(self) -> None:
        process = self._engine.incarnation
        await self._arrive()
        if process != self._engine.incarnation:
            raise EngineError(f"{self.name} is another process")

    def restart(self) -> None:
        self._log.write("restart", self.name, detail="it gave no sign of life")
        self._engine.die(for_good=False)
        asyncio.get_running_loop().call_later(_RESTART_S, self._engine.restart)

    async def _arrive(self) -> None:
        """Deliver a message to a process, after its restart if it is dead."""
        await self._network.delay()
        if not await self._engine.reachable():
            raise WorkerLostError(f"{self.name} has died for good")

    async def _try_to_load(self, version: int) -> None:
        engine, process = self._engine, self._engine.incarnation
        if not engine.serves:
            engine.suspend()
        read = version if engine.ahead == version else await self._weights.pull(version)
        if engine.alive and engine.incarnation == process:
            engine.load(read)

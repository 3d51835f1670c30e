"""The real EngineGroup over engines that fail, with a network between them, and watched.

The invariant: the monitor knows the served version before any engine may sample under it.
"""

import asyncio
from collections.abc import Sequence

from rollart_flow.control.inference.engine_group import EngineGroup
from rollart_flow.control.protocols import Emit, PullStats
from rollart_flow.errors import EngineError, WeightsError, WorkerLostError
from tests.dst.engines import FaultyEngine
from tests.dst.world import World

_AGAIN_S = 0.2
_RESTART_S = 0.5


class WatchedEngineGroup(EngineGroup):
    """The real engine group; it also tells the monitor which version its workers serve."""

    def __init__(
        self,
        world: World,
        engines: Sequence[FaultyEngine],
        version: int,
        emit: Emit,
        *,
        suspended: bool,
        sliding: Sequence[str],
    ) -> None:
        self._monitor = world.monitor
        self._engines = engines
        commands = [NetworkCommands(engine, world) for engine in engines if not engine.gone]
        super().__init__(commands, version, emit, suspended=suspended, sliding=sliding)
        self._monitor.served(version, engines)

    async def update(self, version: int) -> PullStats:
        pull = await super().update(version)
        self._monitor.served(version, self._engines)
        return pull


def start_engine_group(world: World, engines: Sequence[FaultyEngine], emit: Emit) -> EngineGroup:
    """The engine group of a coordinator that starts, for the first time or again.

    It takes over the version and the suspension of the workers that serve.

    Args:
        engines: all workers, dead ones included.
    """
    serving = [engine for engine in engines if engine.alive and engine.serves]
    version = max((engine.version for engine in serving), default=world.tables.published)
    suspended = any(engine.suspended for engine in serving)
    sliding = [engine.worker for engine in engines[: world.plan.sliding]]
    return WatchedEngineGroup(world, engines, version, emit, suspended=suspended, sliding=sliding)


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
        if (read := await self._read(version)) is not None and engine.incarnation == process:
            engine.ahead = read

    async def update(self, version: int) -> PullStats:
        """Swap to a version that was read ahead, or read it until that succeeds."""
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
        read = version if engine.ahead == version else await self._read(version)
        if read is None:
            await asyncio.sleep(_AGAIN_S)
        elif engine.alive and engine.incarnation == process:
            engine.load(read)

    async def _read(self, version: int) -> int | None:
        try:
            return await self._weights.read(version)
        except WeightsError as error:
            self._log.write("fault", self.name, detail=str(error))
            return None

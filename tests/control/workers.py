"""A worker that a Fleet commands, with processes that die, hang and are started again."""

import asyncio

from rollart_flow.control.loop.waits import Signal
from rollart_flow.control.protocols import PullStats
from rollart_flow.errors import EngineError, WorkerAwayError, WorkerLostError

START_S = 20.0
"""A new process takes so long."""


class Commanded:
    """Implements `control.protocols.EngineCommands`; notes what its processes did.

    Args:
        name: of the worker.
        restarts: how often a new process takes the place of one that died.
    """

    def __init__(self, name: str, *, restarts: int = 1, frees: int = 0) -> None:
        self.name = name
        self.version = 0
        self.drawing = True
        self.processes = 1
        self.done: list[str] = []
        self.answers_in_s = 0.0
        self.pull = PullStats()
        self._restarts = restarts
        self._frees = frees
        self._serves = True
        self._hangs = False
        self._starting = False
        self._homeless = False
        self.gone = False
        self._changed = Signal()

    async def suspend(self) -> None:
        await self._reach("suspend")
        self.drawing = False

    def prefetch(self, version: int) -> None:
        self.done.append(f"prefetch {version}")

    async def update(self, version: int) -> PullStats:
        await self._reach(f"update {version}")
        self.version = version
        return self.pull

    async def serve(self, version: int) -> bool:
        await self._reach(f"serve {version}")
        begins, self._serves = not self._serves, True
        self.version, self.drawing = version, True
        return begins

    async def release(self) -> int:
        await self._reach("release")
        return self._frees

    async def leave(self) -> int:
        await self._reach("leave")
        self._serves, self.drawing = False, False
        return self._frees

    async def ping(self) -> None:
        process = self.processes
        await asyncio.sleep(self.answers_in_s)
        if self._homeless:
            raise WorkerAwayError(f"no node for {self.name}")
        await self._reach("ping")
        if process != self.processes:
            raise EngineError("another process is being started")

    def restart(self) -> None:
        self.done.append("restart")
        self.die()

    def die(self) -> None:
        """The process ends; the next one holds version 0 and serves nothing."""
        self.gone = not self._restarts
        self._restarts -= 1
        self.version, self.drawing, self._serves, self._hangs = 0, False, False, False
        self.processes += 1
        self._starting = True
        asyncio.get_running_loop().call_later(START_S, self._started)
        self._changed.notify()

    def lose_node(self) -> None:
        """The process ends with its node, and there is no other one."""
        self._homeless = True
        self.die()

    def find_node(self) -> None:
        """A node is there that can take another process."""
        self._homeless = False
        self._changed.notify()

    def hang(self) -> None:
        """The process does nothing any more."""
        self._hangs, self.drawing = True, False

    async def ended(self, process: int) -> None:
        """Return once a process is no more."""
        while process == self.processes:
            await self._changed.wait()

    def _started(self) -> None:
        self._starting = False
        self._changed.notify()

    async def _reach(self, command: str) -> None:
        while not self.gone and (self._hangs or self._starting or self._homeless):
            await self._changed.wait()
        if self.gone:
            raise WorkerLostError(f"{self.name} is gone")
        self.done.append(command)

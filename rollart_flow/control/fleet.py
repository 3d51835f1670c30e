"""Fleet: all inference workers of a run, as one thing to command (ROLLART section 6.2).

The invariant: a worker whose process was restarted draws its first token under the version that
the others serve, and none while they are suspended. One that is lost for good, or has no node to
run on, is left out, once, with an event; nobody waits for it, and one that gets a node is back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from rollart_flow.control.ports import Emit, EngineCommands
from rollart_flow.control.waits import Signal, waiting
from rollart_flow.errors import RunFailedError, WorkerAwayError, WorkerLostError
from rollart_flow.types import Event, EventKind, Reason

T = TypeVar("T")

NO_WORKER = "every engine worker has died, restarted ones too; resume the run to start new ones"


class Fleet:
    """Commands all workers; implements `control.ports.InferenceControl`.

    Args:
        workers: all of them serve `version`.
        version: policy version.
        emit: where returned and removed workers are reported, and what they release.
        shared: whether suspended workers give back the memory that only generation needs.
        suspended: whether whoever commanded them before has left them suspended.
    """

    def __init__(
        self,
        workers: Iterable[EngineCommands],
        version: int,
        emit: Emit,
        *,
        shared: bool = False,
        suspended: bool = False,
    ) -> None:
        self._workers = {worker.name: worker for worker in workers}
        self._away: dict[str, EngineCommands] = {}
        """Workers without a node."""
        self._leaving = {name: asyncio.Event() for name in self._workers}
        """Set while a worker is away: what waits for its answer gives up."""
        self._version = version
        self._emit = emit
        self._shared = shared
        self._suspended = suspended
        self._resumed = Signal()
        self._commands = asyncio.Lock()

    @property
    def workers(self) -> tuple[EngineCommands, ...]:
        """Workers that were not given up and have a node."""
        return tuple(self._workers.values())

    @property
    def version(self) -> int:
        """Policy version that they serve, or will once they are resumed."""
        return self._version

    async def suspend(self) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            self._suspended = True
            await self._all("suspend", lambda worker: worker.suspend())
            if self._shared:
                await self._release()

    async def _release(self) -> None:
        """Have the workers give back memory; reported where they held some."""
        for name, freed in (await self._all("release", lambda w: w.release())).items():
            if freed:
                version, detail = self._version, {"bytes": freed}
                self._emit(Event(EventKind.RELEASE, name, policy_version=version, detail=detail))

    async def update(self, version: int) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            self._version = version
            await self._all("update", lambda worker: worker.update(version))

    async def resume(self) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            await asyncio.gather(*(self._serve(worker) for worker in self.workers))
            self._check_any()
            self._suspended = False
            self._resumed.notify()

    async def revive(self, name: str) -> bool:
        """Wait until a worker that was lost serves again; False where it never will."""
        while True:
            async with self._commands:
                if not self._suspended:
                    if name in self._workers:
                        await self._serve(self._workers[name])
                    if name not in self._away:
                        return name in self._workers
            with waiting(f"resume, or a node, to revive {name}"):
                await self._resumed.wait()

    def remove(self, name: str, error: WorkerLostError) -> None:
        """Leave out a worker that is lost for good; reported once, whoever notices first."""
        away = self._away.pop(name, None)
        if self._workers.pop(name, away) is not None:
            detail = {"error": str(error), "removed": True}
            self._emit(Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))
            self._resumed.notify()

    def leave(self, name: str, error: WorkerAwayError) -> None:
        """Wait no more for a worker that has no node; reported once. `rejoin` takes it back."""
        if (worker := self._workers.pop(name, None)) is not None:
            self._away[name] = worker
            self._leaving[name].set()
            detail = {"error": str(error), "away": True}
            self._emit(Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))

    async def rejoin(self, name: str) -> None:
        """Command a worker again that was away, if it was."""
        if name not in self._away:
            return
        async with self._commands:
            if (worker := self._away.pop(name, None)) is not None:
                self._leaving[name].clear()
                self._workers[name] = worker
                if not self._suspended:
                    await self._serve(worker)
                self._resumed.notify()

    async def _serve(self, worker: EngineCommands) -> None:
        """Let a worker draw tokens; reported where its process is a new one."""
        name, version = worker.name, self._version
        if await self._reach(worker, "serve", lambda worker: worker.serve(version)):
            self._emit(
                Event(EventKind.RETRY, name, reason=Reason.WORKER_LOST, policy_version=version)
            )

    async def _all(
        self, command: str, ask: Callable[[EngineCommands], Awaitable[T]]
    ) -> dict[str, T | None]:
        """One command for all workers; answers by name. Those being restarted are waited for."""
        workers = self.workers
        answers = await asyncio.gather(*(self._reach(each, command, ask) for each in workers))
        self._check_any()
        return {worker.name: answer for worker, answer in zip(workers, answers, strict=True)}

    def _check_any(self) -> None:
        if not self._workers:
            raise RunFailedError(NO_WORKER)

    async def _reach(
        self, worker: EngineCommands, command: str, ask: Callable[[EngineCommands], Awaitable[T]]
    ) -> T | None:
        """The worker's answer; None for one that is lost for good, which is removed, or away."""
        answer = asyncio.ensure_future(ask(worker))
        left = asyncio.ensure_future(self._leaving[worker.name].wait())
        try:
            with waiting(f"{command}({worker.name})"):
                await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            return await answer if answer.done() else None
        except WorkerLostError as error:
            self.remove(worker.name, error)
            return None
        finally:
            answer.cancel()
            left.cancel()

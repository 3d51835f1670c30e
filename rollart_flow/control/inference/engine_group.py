"""EngineGroup: commands to all inference workers of a run (ROLLART section 6.2).

The invariant: a worker whose process was restarted samples its first token under the version that
the other workers serve, and none while they are suspended. A worker that is permanently lost, or
has no node to run on, is left out and reported once; commands do not wait for it, and it rejoins
when it gets a node. Workers that share their devices with training are left out while training
needs the devices. Prefill workers receive the same commands but sample no tokens: a run continues
without them, but not with prefill workers alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from rollart_flow.control.loop.replayable_queue import ReplayableQueue
from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.control.protocols import Emit, EngineCommands, PullStats
from rollart_flow.errors import RunFailedError, WorkerAwayError, WorkerLostError
from rollart_flow.types import Event, EventKind, Reason

T = TypeVar("T")

NO_WORKER = "every engine worker has died, restarted ones too; resume the run to start new ones"


class EngineGroup:
    """Commands all workers. Each command is idempotent.

    Args:
        workers: inference workers, all serving `version`.
        version: policy version that the workers serve.
        emit: receives events for restarted, removed and moved workers and for released memory.
        shared: whether suspended workers free the memory that only generation needs.
        suspended: whether an earlier EngineGroup left the workers suspended.
        sliding: names of workers that share their devices with training (train-rollout
            multiplexing).
        prefill: names of workers that compute prompts for the others.
    """

    def __init__(
        self,
        workers: Iterable[EngineCommands],
        version: int,
        emit: Emit,
        *,
        shared: bool = False,
        suspended: bool = False,
        sliding: Iterable[str] = (),
        prefill: Iterable[str] = (),
    ) -> None:
        self._workers = {worker.name: worker for worker in workers}
        self._sliding = frozenset(sliding)
        self._prefill = set(prefill)
        self._away: dict[str, EngineCommands] = {}
        """Workers without a node."""
        self._training: dict[str, EngineCommands] = {}
        """Sliding workers whose devices training uses."""
        self._trains = False
        """Whether training uses the devices of the sliding workers."""
        self._idle: set[str] = set()
        """Workers that do not serve yet or were told to leave, so that a start is no restart."""
        self._successors: dict[str, tuple[str, ...]] = {}
        """Names of the workers that serve in place of a replaced worker, by its name."""
        self._joined: ReplayableQueue[EngineCommands] = ReplayableQueue("workers")
        for worker in self.workers:
            self._joined.publish(worker)
        self._leaving = {name: asyncio.Event() for name in self._workers}
        """Events by worker, set while it is away so that commands stop waiting for its answer."""
        self._version = version
        self._emit = emit
        self._shared = shared
        self._suspended = suspended
        self._resumed = Signal()
        self._commands = asyncio.Lock()

    @property
    def workers(self) -> tuple[EngineCommands, ...]:
        """Workers that receive commands: not lost, with a node, and not in use by training."""
        return tuple(self._workers.values())

    async def joined(self, after: int) -> tuple[int, tuple[EngineCommands, ...]]:
        """Wait for workers that joined past the cursor, initial workers included.

        Returns:
            (new cursor, workers); no workers once all are lost.
        """
        return await self._joined.read(after)

    @property
    def suspended(self) -> bool:
        """Whether the workers are suspended."""
        return self._suspended

    @property
    def version(self) -> int:
        """Policy version that the workers serve, or will serve once they are resumed."""
        return self._version

    async def suspend(self) -> None:
        """Return once no worker generates."""
        async with self._commands:
            self._suspended = True
            await self._all("suspend", lambda worker: worker.suspend())
            if self._shared:
                await self._release()

    async def _release(self) -> None:
        """Free the workers' generation memory, and report the workers that freed some."""
        for name, freed in (await self._all("release", lambda w: w.release())).items():
            if freed:
                version, detail = self._version, {"bytes": freed}
                self._emit(Event(EventKind.RELEASE, name, policy_version=version, detail=detail))

    def prefetch(self, version: int) -> None:
        """Have all workers read a version while rollout continues, without waiting."""
        for worker in self.workers:
            worker.prefetch(version)

    async def update(self, version: int) -> PullStats:
        """Return once every worker holds exactly this version."""
        async with self._commands:
            self._version = version
            answers = await self._all("update", lambda worker: worker.update(version))
            pulls = {name: pull for name, pull in answers.items() if pull is not None}
            for name, pull in pulls.items():
                for retried in pull.retried:
                    self._emit(retried.event(name, version))
            return PullStats.of_all(pulls.values())

    async def resume(self) -> None:
        """Have all workers serve the current version."""
        async with self._commands:
            await self._together(self._serve(worker) for worker in self.workers)
            self._check_any()
            self._suspended = False
            self._resumed.notify()

    async def to_training(self) -> None:
        """Hand the devices of the sliding workers to training."""
        async with self._commands:
            leaving = [w for w in self.workers if w.name in self._sliding]
            freed = await self._together(map(self._leave, leaving))
            self._trains = True
            for worker, given_back in zip(leaving, freed, strict=True):
                if self._workers.pop(worker.name, None) is not None:  # not lost meanwhile
                    self._training[worker.name] = worker
                    self._slid(worker.name, {"to": "training", "bytes": given_back or 0})

    async def to_rollout(self) -> None:
        """Hand the devices of the sliding workers back to rollout."""
        async with self._commands:
            coming, self._training, self._trains = self._training, {}, False
            self._workers |= coming
            if not self._suspended:
                await self._together(self._serve(w) for w in coming.values())
            for name in coming:
                self._slid(name, {"to": "rollout"})
            if coming:
                self._resumed.notify()

    async def _leave(self, worker: EngineCommands) -> int | None:
        self._idle.add(worker.name)
        return await self._reach(worker, "leave", lambda worker: worker.leave())

    def _slid(self, name: str, detail: dict[str, object]) -> None:
        self._emit(Event(EventKind.SLIDE, name, policy_version=self._version, detail=detail))

    async def revive(self, name: str) -> tuple[str, ...]:
        """Wait until a lost worker, or those that replaced it, serve again; return their names,
        or none if none ever will."""
        while True:
            names = self._successors.get(name, (name,))
            async with self._commands:
                if not self._suspended:
                    for each in names:
                        if each in self._workers:
                            await self._serve(self._workers[each])
                    if not any(each in self._away or each in self._training for each in names):
                        return tuple(each for each in names if each in self._workers)
            with waiting(f"resume, a node or the end of training, to revive {name}"):
                await self._resumed.wait()

    async def replace(self, old: Mapping[str, bool], new: Iterable[EngineCommands]) -> None:
        """Replace workers by new ones, on which requests in flight continue.

        Args:
            old: by name of a replaced worker, whether it continues to serve beside the new ones.
            new: new workers, which hold no version yet.
        """
        async with self._commands:
            names = []
            for worker in new:
                names.append(worker.name)
                if old.keys() <= self._prefill:
                    self._prefill.add(worker.name)
                self._workers[worker.name] = worker
                self._leaving[worker.name] = asyncio.Event()
                self._idle.add(worker.name)
                if not self._suspended:
                    await self._serve(worker)
                self._joined.publish(worker)
            for name, stays in old.items():
                self._successors[name] = (*names, name) if stays else tuple(names)
                if (leaving := self._workers.get(name)) is not None:
                    await self._leave(leaving)
                    if stays and not self._suspended:
                        await self._serve(leaving)
                if not stays:
                    for place in (self._workers, self._away, self._training):
                        place.pop(name, None)
            self._resumed.notify()

    def remove(self, name: str, error: WorkerLostError) -> None:
        """Remove a permanently lost worker, and report the loss once."""
        idle = self._away.pop(name, None) or self._training.pop(name, None)
        if self._workers.pop(name, idle) is not None:
            detail = {"error": str(error), "removed": True}
            self._emit(Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))
            self._resumed.notify()
            if self.lost:
                self._joined.close()

    def leave(self, name: str, error: WorkerAwayError) -> None:
        """Set aside a worker that has no node, until `rejoin`, and report this once."""
        worker = self._workers.pop(name, None) or self._training.pop(name, None)
        if worker is not None:
            self._away[name] = worker
            self._leaving[name].set()
            detail = {"error": str(error), "away": True}
            self._emit(Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))

    async def rejoin(self, name: str) -> None:
        """Take back a worker that was away; a sliding one serves once training is over."""
        if name not in self._away:
            return
        async with self._commands:
            if (worker := self._away.pop(name, None)) is not None:
                self._leaving[name].clear()
                if self._trains and name in self._sliding:
                    self._training[name] = worker
                    return
                self._workers[name] = worker
                if not self._suspended:
                    await self._serve(worker)
                self._resumed.notify()

    async def _serve(self, worker: EngineCommands) -> None:
        """Have a worker sample tokens, and report a retry if its process was replaced."""
        name, version = worker.name, self._version
        begins = await self._reach(worker, "serve", lambda worker: worker.serve(version))
        if begins and name not in self._idle:
            self._emit(
                Event(EventKind.RETRY, name, reason=Reason.WORKER_LOST, policy_version=version)
            )
        if begins is not None:
            self._idle.discard(name)

    async def _all(
        self, command: str, ask: Callable[[EngineCommands], Awaitable[T]]
    ) -> dict[str, T | None]:
        """Send a command to all workers, restarting ones included; return answers by name."""
        workers = self.workers
        answers = await self._together(self._reach(each, command, ask) for each in workers)
        self._check_any()
        return {worker.name: answer for worker, answer in zip(workers, answers, strict=True)}

    async def _together(self, answers: Iterable[Awaitable[T]]) -> list[T]:
        return await asyncio.gather(*answers)

    @property
    def serving(self) -> bool:
        """Whether a worker that samples tokens has a node."""
        return any(place.keys() - self._prefill for place in (self._workers, self._training))

    @property
    def lost(self) -> bool:
        """Whether no worker that samples tokens is left, nor one that may come back."""
        return not self.serving and self._away.keys() <= self._prefill

    def _check_any(self) -> None:
        if self.lost:
            raise RunFailedError(NO_WORKER)

    async def _reach(
        self, worker: EngineCommands, command: str, ask: Callable[[EngineCommands], Awaitable[T]]
    ) -> T | None:
        """Return a worker's answer, or None for one that is away or lost (and then removed)."""
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

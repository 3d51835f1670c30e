"""Fleet: all inference workers of a run, as one thing to command (ROLLART section 6.2).

The invariant: a worker whose process was restarted draws its first token under the version that
the others serve, and none while they are suspended. One that is lost for good, or has no node to
run on, is left out, once, with an event; nobody waits for it, and one that gets a node is back.
Those that share their devices with training are left out while it needs them. Prefill workers obey
with the others, but draw no tokens: without them the run goes on, with them alone it does not.
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
    """Commands all workers; implements `control.protocols.InferenceControl`.

    Args:
        workers: all of them serve `version`.
        version: policy version.
        emit: where returned and removed workers are reported, and what they release.
        shared: whether suspended workers give back the memory that only generation needs.
        suspended: whether whoever commanded them before has left them suspended.
        sliding: names of those that share their devices with training (train-rollout multiplexing).
        prefill: names of those that compute prompts for the others.
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
        """Sliding workers whose devices training has."""
        self._trains = False
        """Whether it has the devices of all of them."""
        self._idle: set[str] = set()
        """Workers that serve nothing yet, or were told to leave, so that they begin (again)."""
        self._successors: dict[str, tuple[str, ...]] = {}
        """By a worker that was replaced: who serves in its place."""
        self._joined: ReplayableQueue[EngineCommands] = ReplayableQueue("workers")
        for worker in self.workers:
            self._joined.publish(worker)
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

    async def joined(self, after: int) -> tuple[int, tuple[EngineCommands, ...]]:
        """Wait for workers that have joined past the cursor, the first ones included; none once
        all are lost."""
        return await self._joined.read(after)

    @property
    def suspended(self) -> bool:
        """Whether the workers are suspended."""
        return self._suspended

    @property
    def version(self) -> int:
        """Policy version that they serve, or will once they are resumed."""
        return self._version

    async def suspend(self) -> None:
        """See `control.protocols.InferenceControl`."""
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

    def prefetch(self, version: int) -> None:
        """See `control.protocols.InferenceControl`."""
        for worker in self.workers:
            worker.prefetch(version)

    async def update(self, version: int) -> PullStats:
        """See `control.protocols.InferenceControl`."""
        async with self._commands:
            self._version = version
            answers = await self._all("update", lambda worker: worker.update(version))
            pulls = [pull for pull in answers.values() if pull is not None]
            exposed_s = max((pull.exposed_s for pull in pulls), default=0.0)
            return PullStats(sum(pull.pull_s for pull in pulls), exposed_s)

    async def resume(self) -> None:
        """See `control.protocols.InferenceControl`."""
        async with self._commands:
            await asyncio.gather(*(self._serve(worker) for worker in self.workers))
            self._check_any()
            self._suspended = False
            self._resumed.notify()

    async def to_training(self) -> None:
        """See `control.protocols.InferenceControl`."""
        async with self._commands:
            leaving = [w for w in self.workers if w.name in self._sliding]
            freed = await asyncio.gather(*map(self._leave, leaving))
            self._trains = True
            for worker, given_back in zip(leaving, freed, strict=True):
                if self._workers.pop(worker.name, None) is not None:  # not lost meanwhile
                    self._training[worker.name] = worker
                    self._slid(worker.name, {"to": "training", "bytes": given_back or 0})

    async def to_rollout(self) -> None:
        """See `control.protocols.InferenceControl`."""
        async with self._commands:
            coming, self._training, self._trains = self._training, {}, False
            self._workers |= coming
            if not self._suspended:
                await asyncio.gather(*(self._serve(w) for w in coming.values()))
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
        """Wait until who serves in place of a worker that was lost does: itself, or those that it
        was replaced by; none where nobody ever will."""
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
        """Workers take the place of others: what is in flight there goes on with them.

        Args:
            old: by name of a worker that is replaced, whether it goes on to serve beside them.
            new: hold no version yet.
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
        """Leave out a worker that is lost for good; reported once, whoever notices first."""
        idle = self._away.pop(name, None) or self._training.pop(name, None)
        if self._workers.pop(name, idle) is not None:
            detail = {"error": str(error), "removed": True}
            self._emit(Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))
            self._resumed.notify()
            if self.lost:
                self._joined.close()

    def leave(self, name: str, error: WorkerAwayError) -> None:
        """Wait no more for a worker that has no node; reported once. `rejoin` takes it back."""
        worker = self._workers.pop(name, None) or self._training.pop(name, None)
        if worker is not None:
            self._away[name] = worker
            self._leaving[name].set()
            detail = {"error": str(error), "away": True}
            self._emit(Event(EventKind.CRASH, name, reason=Reason.WORKER_LOST, detail=detail))

    async def rejoin(self, name: str) -> None:
        """Command a worker again that was away, if it was; a sliding one once training is over."""
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
        """Let a worker draw tokens; reported where another process took the place of its own."""
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
        """One command for all workers; answers by name. Those being restarted are waited for."""
        workers = self.workers
        answers = await asyncio.gather(*(self._reach(each, command, ask) for each in workers))
        self._check_any()
        return {worker.name: answer for worker, answer in zip(workers, answers, strict=True)}

    @property
    def lost(self) -> bool:
        """Whether no worker that draws tokens is left, nor one that may come back."""
        places = (self._workers, self._away, self._training)
        return all(place.keys() <= self._prefill for place in places)

    def _check_any(self) -> None:
        if self.lost:
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

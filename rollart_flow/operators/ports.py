"""Ports of the control plane over Ray: the other side is an actor or a cluster of workers."""

import asyncio
from typing import Any

import ray

from rollart_flow.control.ports import Cancellation, Change, Emit
from rollart_flow.control.waits import Signal
from rollart_flow.errors import EngineError, RunFailedError
from rollart_flow.resources import Cluster, WorkerHandle
from rollart_flow.resources.reasons import reason
from rollart_flow.types import Assignment, Batch, Event, EventKind, Reason

NO_WORKER = "every engine worker has died, restarted ones too; resume the run to start new ones"


class RemoteBuffer:
    """The buffer actor as the coordinator sees it; implements `control.ports.Buffered`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """See `control.ports.Buffered`."""
        batch: Batch = await self._actor.get_batch.remote(step, version, size)
        return batch

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """See `control.ports.Buffered`."""
        changes: tuple[int, tuple[Change, ...]] = await self._actor.changes.remote(after)
        return changes


class RemoteAdmission:
    """The coordinator as rollout hosts see it; implements `control.ports.Admission`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def admit(self, source: str, index: int) -> Assignment | None:
        """See `control.ports.Admission`."""
        assignment: Assignment | None = await self._actor.admit.remote(source, index)
        return assignment

    async def permit(self, trajectory_id: str, host: str) -> Cancellation | None:
        """See `control.ports.Admission`."""
        cancellation: Cancellation | None = await self._actor.permit.remote(trajectory_id, host)
        return cancellation

    async def started(self, trajectory_id: str, version: int) -> None:
        """See `control.ports.Admission`."""
        await self._actor.started.remote(trajectory_id, version)

    async def cancellations(self, host: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """See `control.ports.Admission`."""
        read: tuple[int, tuple[Cancellation, ...]] = await self._actor.cancellations.remote(
            host, after
        )
        return read


class RemoteRecovery:
    """The coordinator as it brings lost engine workers back; a `control.proxy.Recover`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def __call__(self, worker: str) -> bool:
        """Wait until the worker serves again; False where it never will."""
        try:
            returned: bool = await self._actor.revive.remote(worker)
        except ray.exceptions.RayError as error:
            raise EngineError(f"nobody brings worker {worker} back: {reason(error)}") from error
        return returned


class ClusterControl:
    """All engine workers of a run; implements `control.ports.InferenceControl`.

    The invariant: a worker that Ray has restarted draws its first token under the version that the
    others serve, and none while they are suspended. One that Ray has given up is left out.

    Args:
        engines: the workers, all of which serve `version`.
        version: policy version.
        emit: where returned and removed workers are reported, and what they release.
        shared: whether suspended workers give back the memory that only generation needs.
    """

    def __init__(self, engines: Cluster, version: int, emit: Emit, *, shared: bool = False) -> None:
        self._shared = shared
        self._workers = {worker.name: worker for worker in engines.workers}
        self._version = version
        self._emit = emit
        self._suspended = False
        self._resumed = Signal()
        self._commands = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """Workers that were not given up."""
        return tuple(self._workers)

    async def suspend(self) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            self._suspended = True
            await self._all("suspend")
            if self._shared:
                await self._release()

    async def _release(self) -> None:
        """Have the workers give back memory; reported where they held some."""
        for name, freed in (await self._all("release")).items():
            if freed:
                version, detail = self._version, {"bytes": freed}
                self._emit(Event(EventKind.RELEASE, name, policy_version=version, detail=detail))

    async def update(self, version: int) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            self._version = version
            await self._all("update", version)

    async def resume(self) -> None:
        """See `control.ports.InferenceControl`."""
        async with self._commands:
            await asyncio.gather(*(self._serve(worker) for worker in tuple(self._workers.values())))
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
                    return name in self._workers
            await self._resumed.wait()

    async def _serve(self, worker: WorkerHandle) -> None:
        """Let a worker draw tokens; reported where its process is a new one."""
        if await self._reach(worker, "serve", self._version):
            name, version = worker.name, self._version
            self._emit(
                Event(EventKind.RETRY, name, reason=Reason.WORKER_LOST, policy_version=version)
            )

    async def _all(self, command: str, *arguments: Any) -> dict[str, Any]:
        """One command for all workers; answers by name. Ray waits for those being restarted."""
        workers = dict(self._workers)
        answers = await asyncio.gather(
            *(self._reach(worker, command, *arguments) for worker in workers.values())
        )
        self._check_any()
        return dict(zip(workers, answers, strict=True))

    def _check_any(self) -> None:
        if not self._workers:
            raise RunFailedError(NO_WORKER)

    async def _reach(self, worker: WorkerHandle, command: str, *arguments: Any) -> Any:
        """The worker's answer; None for one that died for good, which is removed."""
        try:
            return await getattr(worker.actor, command).remote(*arguments)
        except ray.exceptions.ActorDiedError as error:
            self._workers.pop(worker.name, None)
            detail = {"error": reason(error), "removed": True}
            self._emit(
                Event(EventKind.CRASH, worker.name, reason=Reason.WORKER_LOST, detail=detail)
            )
            return None

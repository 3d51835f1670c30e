"""Ports of the control plane over Ray: the other side is an actor."""

import asyncio
from typing import Any

import ray

from rollart_flow.control.protocols import Cancellation, Change, Inference, PullStats
from rollart_flow.engines.remote import RemoteInference
from rollart_flow.errors import EngineError, WorkerAwayError, WorkerLostError
from rollart_flow.resources import WorkerHandle
from rollart_flow.resources.reasons import reason
from rollart_flow.types import Assignment, Batch

_NODE_S = 2.0
"""How long a worker may be silent before its node is looked for [s]."""


class RemoteBuffer:
    """The buffer actor as the coordinator sees it; implements `control.protocols.Buffered`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """See `control.protocols.Buffered`."""
        batch: Batch = await self._actor.get_batch.remote(step, version, size)
        return batch

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """See `control.protocols.Buffered`."""
        changes: tuple[int, tuple[Change, ...]] = await self._actor.changes.remote(after)
        return changes


class RemoteAdmission:
    """The coordinator as rollout hosts see it; implements `control.protocols.Admission`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def admit(self, source: str, index: int) -> Assignment | None:
        """See `control.protocols.Admission`."""
        assignment: Assignment | None = await self._actor.admit.remote(source, index)
        return assignment

    async def permit(self, trajectory_id: str, host: str) -> Cancellation | None:
        """See `control.protocols.Admission`."""
        cancellation: Cancellation | None = await self._actor.permit.remote(trajectory_id, host)
        return cancellation

    async def started(self, trajectory_id: str, version: int) -> None:
        """See `control.protocols.Admission`."""
        await self._actor.started.remote(trajectory_id, version)

    async def cancellations(self, host: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """See `control.protocols.Admission`."""
        read: tuple[int, tuple[Cancellation, ...]] = await self._actor.cancellations.remote(
            host, after
        )
        return read


class RemoteRecovery:
    """The coordinator as it brings lost engine workers back; a
    `control.inference.worker_pool.Recover`."""

    def __init__(self, actor: Any, client: str) -> None:
        self._actor = actor
        self._client = client

    async def __call__(self, worker: Inference) -> list[Inference]:
        """Wait until those serve that take the place of a worker: itself, or others."""
        try:
            handles: tuple[WorkerHandle, ...] = await self._actor.revive.remote(worker.worker)
        except ray.exceptions.RayError as error:
            name = worker.worker
            raise EngineError(f"nobody brings worker {name} back: {reason(error)}") from error
        return [
            worker
            if (handle.name, handle.placement.stands_for) == (worker.worker, worker.stands_for)
            else RemoteInference(handle, self._client)
            for handle in handles
        ]


class RemoteCommands:
    """An engine worker over Ray; implements `control.protocols.EngineCommands`.

    Ray restarts its process as often as its `Cluster` says: once. Commands wait for that.
    """

    def __init__(self, handle: WorkerHandle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self._handle.name

    async def suspend(self) -> None:
        """See `control.protocols.EngineCommands`."""
        await self._ask(self._handle.actor.suspend.remote())

    def prefetch(self, version: int) -> None:
        """See `control.protocols.EngineCommands`."""
        self._handle.actor.prefetch.remote(version)

    async def update(self, version: int) -> PullStats:
        """See `control.protocols.EngineCommands`."""
        pull: PullStats = await self._ask(self._handle.actor.update.remote(version))
        return pull

    async def serve(self, version: int) -> bool:
        """See `control.protocols.EngineCommands`."""
        begins: bool = await self._ask(self._handle.actor.serve.remote(version))
        return begins

    async def release(self) -> int:
        """See `control.protocols.EngineCommands`."""
        freed: int = await self._ask(self._handle.actor.release.remote())
        return freed

    async def leave(self) -> int:
        """See `control.protocols.EngineCommands`."""
        freed: int = await self._ask(self._handle.actor.leave.remote())
        return freed

    async def ping(self) -> None:
        """See `control.protocols.EngineCommands`."""
        answer = asyncio.ensure_future(self._ask(self._handle.actor.ping.remote()))
        try:
            # Ray keeps calls of an actor that waits for a node, and says nothing of it.
            while not (await asyncio.wait((answer,), timeout=_NODE_S))[0]:
                await self._check_node()
            await answer
        except ray.exceptions.RayError as error:
            await self._check_node()
            raise EngineError(f"worker {self.name} is being restarted: {reason(error)}") from error
        finally:
            answer.cancel()

    async def _check_node(self) -> None:
        placement = self._handle.placement
        if placement.group is not None:
            table = await asyncio.to_thread(ray.util.placement_group_table, placement.group)
            if table["state"] != "CREATED":
                raise WorkerAwayError(f"no node has a free {placement.granted} now")

    def restart(self) -> None:
        """See `control.protocols.EngineCommands`."""
        # The raylet kills a process that does not go by itself after some seconds.
        ray.kill(self._handle.actor, no_restart=False)

    async def _ask(self, answer: Any) -> Any:
        try:
            return await answer
        except ray.exceptions.ActorDiedError as error:
            raise WorkerLostError(reason(error)) from error

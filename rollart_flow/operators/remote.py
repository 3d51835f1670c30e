"""Implementations of control plane ports that call Ray actors."""

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
"""Time without an answer after which a worker's node is checked [s]."""


class RemoteBuffer:
    """Client of the buffer actor in the coordinator; implements `control.protocols.Buffered`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def get_batch(self, step: int, version: int, size: int) -> Batch:
        """Wait for and return the batch of a step."""
        batch: Batch = await self._actor.get_batch.remote(step, version, size)
        return batch

    async def changes(self, after: int) -> tuple[int, tuple[Change, ...]]:
        """Wait for changes past a cursor; return (new cursor, changes)."""
        changes: tuple[int, tuple[Change, ...]] = await self._actor.changes.remote(after)
        return changes


class RemoteAdmission:
    """Client of the coordinator in rollout workers; implements `control.protocols.Admission`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def admit(self, source: str, index: int) -> Assignment | None:
        """Wait for and return the index-th attempt of a source, or None if the run ends."""
        assignment: Assignment | None = await self._actor.admit.remote(source, index)
        return assignment

    async def permit(self, trajectory_id: str, host: str) -> Cancellation | None:
        """Return None if an attempt may start, or the cancellation that ends it."""
        cancellation: Cancellation | None = await self._actor.permit.remote(trajectory_id, host)
        return cancellation

    async def started(self, trajectory_id: str, version: int) -> None:
        """Report that an attempt has its first token, and the policy version of that token."""
        await self._actor.started.remote(trajectory_id, version)

    async def cancellations(self, host: str, after: int) -> tuple[int, tuple[Cancellation, ...]]:
        """Wait for a rollout worker's cancellations past a cursor; (new cursor, cancellations)."""
        read: tuple[int, tuple[Cancellation, ...]] = await self._actor.cancellations.remote(
            host, after
        )
        return read


class RemoteRecovery:
    """Recovery of lost engine workers through the coordinator.

    An instance is a `control.inference.worker_pool.Recover`.
    """

    def __init__(self, actor: Any, client: str) -> None:
        self._actor = actor
        self._client = client

    async def __call__(self, worker: Inference) -> list[Inference]:
        """Wait until the replacements of a lost worker serve: the worker itself, or others."""
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
    """Client of an engine worker's actor; implements `control.protocols.EngineCommands`.

    Ray restarts the worker's process as often as its `Cluster` allows: once. Commands wait for the
    restart.
    """

    def __init__(self, handle: WorkerHandle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self._handle.name

    async def suspend(self) -> None:
        """Return once the worker samples no more tokens."""
        await self._ask(self._handle.actor.suspend.remote())

    def prefetch(self, version: int) -> None:
        """Start to read a version while generation continues. Does not wait."""
        self._handle.actor.prefetch.remote(version)

    async def update(self, version: int) -> PullStats:
        """Return once the worker holds exactly this version."""
        pull: PullStats = await self._ask(self._handle.actor.update.remote(version))
        return pull

    async def serve(self, version: int) -> bool:
        """Let the worker serve a version; return whether a new process starts to with this call."""
        begins: bool = await self._ask(self._handle.actor.serve.remote(version))
        return begins

    async def release(self) -> int:
        """Free the memory that only generation needs, until `serve`; return its bytes."""
        freed: int = await self._ask(self._handle.actor.release.remote())
        return freed

    async def leave(self) -> int:
        """End the requests in flight, take no more until `serve`, and return the freed bytes."""
        freed: int = await self._ask(self._handle.actor.leave.remote())
        return freed

    async def ping(self) -> None:
        """Return once the worker answers, whatever else it is doing."""
        answer = asyncio.ensure_future(self._ask(self._handle.actor.ping.remote()))
        try:
            # Ray silently queues calls to an actor that waits for a node.
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
        """End the worker's process, even if it hangs, so that Ray may restart it. Does not wait."""
        # The raylet kills a process that does not exit by itself after some seconds.
        ray.kill(self._handle.actor, no_restart=False)

    async def _ask(self, answer: Any) -> Any:
        try:
            return await answer
        except ray.exceptions.ActorDiedError as error:
            raise WorkerLostError(reason(error)) from error

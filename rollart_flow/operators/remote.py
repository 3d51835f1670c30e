"""Implementations of control plane ports that call the actors of a run.

Messages of one turn of the event loop leave together, since each call of an actor costs far more
than its contents.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

from rollart_flow.control.protocols import Inference, PullStats
from rollart_flow.engines.remote import RemoteInference
from rollart_flow.errors import EngineError, WorkerLostError
from rollart_flow.resources import Remote, WorkerHandle
from rollart_flow.resources.nodes import check_placed, while_placed
from rollart_flow.resources.reasons import deaths, failures, reason
from rollart_flow.types import Event, EventKind

if TYPE_CHECKING:
    import ray

    from rollart_flow.engines.worker import EngineWorker
    from rollart_flow.operators.buffer import BufferActor

T = TypeVar("T")
_log = logging.getLogger(__name__)


class EventSender:
    """Sends the events of a process to the buffer, which commits them."""

    def __init__(self, buffer: "Remote[BufferActor]") -> None:
        self._buffer = buffer
        self._events: list[tuple[datetime, Event]] = []
        self._sent = False
        """Whether events were sent that `_arrival` does not wait for."""
        self._arrival: asyncio.Future[None] | None = None

    def emit(self, event: Event) -> None:
        """Send an event with the other events of this turn of the loop."""
        if event.kind is EventKind.CRASH:
            _log.error("%s died: %s", event.subject, event.detail.get("error", event.reason))
        if not self._events:
            asyncio.get_running_loop().call_soon(self._send)
        self._events.append((datetime.now(UTC), event))

    def _send(self) -> None:
        events, self._events = self._events, []
        if events:
            self._sent = True
            self._buffer.call.report.start(events)

    async def received(self) -> None:
        """Return once the buffer has received all events emitted so far."""
        self._send()
        if self._sent:
            self._sent = False
            self._arrival = asyncio.ensure_future(self._buffer.call.received.aio())
        if self._arrival is not None:
            await asyncio.shield(self._arrival)


class Reviving(Protocol):
    """The coordinator's port for the recovery of lost engine workers."""

    async def revive(self, worker: str) -> "tuple[WorkerHandle[EngineWorker], ...]":
        """Wait until the replacements of a lost worker serve; see `CoordinatorActor.revive`."""


class RemoteRecovery:
    """Recovery of lost engine workers through the coordinator.

    An instance is a `control.inference.worker_pool.Recover`.
    """

    def __init__(self, coordinator: Reviving, client: str) -> None:
        self._coordinator = coordinator
        self._client = client

    async def __call__(self, worker: Inference) -> list[Inference]:
        """Wait until the replacements of a lost worker serve: the worker itself, or others."""
        try:
            handles = await self._coordinator.revive(worker.worker)
        except failures() as error:
            raise EngineError(
                f"worker {worker.worker} was lost and no replacement is available: "
                f"{reason(error)}; see events of kind crash"
            ) from error
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

    def __init__(self, handle: "WorkerHandle[EngineWorker]") -> None:
        self._handle = handle
        self._worker = handle.call

    @property
    def name(self) -> str:
        """Name of the worker."""
        return self._handle.name

    async def suspend(self) -> None:
        """Return once the worker samples no more tokens."""
        await self._ask(self._worker.suspend.start())

    def prefetch(self, version: int) -> None:
        """Start to read a version while generation continues. Does not wait."""
        self._worker.prefetch.start(version)

    async def update(self, version: int) -> PullStats:
        """Return once the worker holds exactly this version."""
        return await self._ask(self._worker.update.start(version))

    async def serve(self, version: int) -> bool:
        """Let the worker serve a version; return whether a new process starts to with this call."""
        return await self._ask(self._worker.serve.start(version))

    async def release(self) -> int:
        """Free the memory that only generation needs, until `serve`; return its bytes."""
        return await self._ask(self._worker.release.start())

    async def leave(self) -> int:
        """End the requests in flight, take no more until `serve`, and return the freed bytes."""
        return await self._ask(self._worker.leave.start())

    async def ping(self) -> None:
        """Return once the worker answers, whatever else it is doing."""
        placement = self._handle.placement
        try:
            await while_placed(placement, self._ask(self._worker.ping.start()))
        except failures() as error:
            await check_placed(placement)
            raise EngineError(f"worker {self.name} is being restarted: {reason(error)}") from error

    def restart(self) -> None:
        """End the worker's process, even if it hangs, so that Ray may restart it. Does not wait."""
        # The raylet kills a process that does not exit by itself after some seconds.
        self._handle.kill(restart=True)

    async def _ask(self, answer: "ray.ObjectRef[T]") -> T:
        try:
            return await answer
        except deaths() as error:
            raise WorkerLostError(reason(error)) from error

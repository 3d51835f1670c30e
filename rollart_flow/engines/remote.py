"""`RemoteInference`: the client of an engine worker in a rollout process. Loads no torch.

Calls are coalesced: requests made in one turn of the client's event loop are sent in one message,
and chunks come back through one long-lived read with a cursor per client. The invariant: every
request ends with a finish reason or an EngineError, even if the worker was restarted between two
messages and has no record of it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from rollart_flow.control.loop.inbox import Inbox
from rollart_flow.engines.base import Delivery, EngineFailure
from rollart_flow.errors import EngineError
from rollart_flow.resources import WorkerHandle
from rollart_flow.resources.nodes import NODE_S, while_placed
from rollart_flow.resources.reasons import failures, reason
from rollart_flow.types import Chunk, GenerationRequest

if TYPE_CHECKING:
    from rollart_flow.engines.worker import EngineWorker

T = TypeVar("T")

_QUIET_S = 10.0
"""Time without chunks after which a worker's node is checked; many clients read from many [s]."""


class RemoteInference:
    """The client of an `EngineWorker`; implements `control.protocols.Inference`."""

    def __init__(self, handle: "WorkerHandle[EngineWorker]", client: str) -> None:
        self._handle = handle
        self._worker = handle.call
        self._client = client
        self._streams: dict[str, Inbox[Delivery]] = {}
        self._unsent: list[GenerationRequest] = []
        self._incarnation = ""
        """Identifier of the worker process that received the requests in flight."""
        self._cursor = 0
        self._reader: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None

    @property
    def worker(self) -> str:
        """The name of the worker."""
        return self._handle.name

    @property
    def hardware(self) -> str:
        """The resource class that the worker was granted."""
        return self._handle.placement.granted

    @property
    def stands_for(self) -> frozenset[str]:
        """The resource classes that the worker stands in for; see `control.protocols.Inference`."""
        return self._handle.placement.stands_for

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream a request's chunks; see `control.protocols.Inference.generate`."""
        inbox: Inbox[Delivery] = Inbox()
        self._streams[request.request_id] = inbox
        self._send(request)
        finished = False
        try:
            while not finished:
                delivery = await inbox.get()
                if isinstance(delivery, EngineFailure):
                    finished = True
                    raise delivery.error
                finished = delivery.finish_reason is not None
                yield delivery
        finally:
            self._streams.pop(request.request_id, None)
            if not finished:
                self._worker.abort.start((request.request_id,))

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with the tokens sampled so far.

        Raises:
            EngineError: the worker is lost.
        """
        try:
            await self._worker.abort.start((request_id,))
        except failures() as error:
            raise self._lost(error) from error

    def _send(self, request: GenerationRequest) -> None:
        self._unsent.append(request)
        if self._sender is None:
            self._sender = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        # A separate task runs after all callbacks that are ready in this turn of the loop.
        try:
            await self._connect()
        except failures(EngineError) as error:
            self._fail(self._take_unsent(), error)
            return
        requests = self._take_unsent()
        try:
            sent = self._worker.submit.start(self._client, self._incarnation, requests)
            await self._answered(sent)
        except failures(EngineError) as error:
            self._fail(requests, error)

    def _take_unsent(self) -> tuple[GenerationRequest, ...]:
        """Return the unsent requests; later requests go into the next message."""
        unsent, self._unsent, self._sender = self._unsent, [], None
        return tuple(request for request in unsent if request.request_id in self._streams)

    async def _connect(self) -> None:
        """Identify the worker process and start reading its deliveries."""
        if not self._incarnation:
            self._incarnation = await self._answered(self._worker.connect.start())
            self._cursor = 0
            if not self._incarnation:
                raise EngineError("it has just started and serves no version yet")
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())

    async def _answered(self, reference: Awaitable[T], every_s: float = NODE_S) -> T:
        return await while_placed(self._handle.placement, reference, every_s)

    async def _read(self) -> None:
        try:
            while self._streams:
                read = self._worker.poll.start(self._client, self._incarnation, self._cursor)
                incarnation, self._cursor, deliveries = await self._answered(read, _QUIET_S)
                if incarnation != self._incarnation:
                    raise EngineError("it was restarted")
                for delivery in deliveries:
                    if delivery.request_id in self._streams:
                        self._streams[delivery.request_id].put(delivery)
        except failures(EngineError) as error:
            self._incarnation = ""
            self._fail_all(tuple(self._streams), error)
        finally:
            self._reader = None

    def _fail(self, requests: Sequence[GenerationRequest], error: Exception) -> None:
        self._fail_all([request.request_id for request in requests], error)

    def _fail_all(self, request_ids: Sequence[str], error: Exception) -> None:
        for request_id in request_ids:
            if request_id in self._streams:
                self._streams[request_id].put(EngineFailure(request_id, self._lost(error)))

    def _lost(self, error: Exception) -> EngineError:
        return EngineError(f"worker {self.worker} is lost: {reason(error)}")

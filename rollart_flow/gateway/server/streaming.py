"""The wait for an answer, and the streams that live while it goes on.

The invariants: a stream ends with its terminal event only after the session has recorded the call;
a client that hangs up, or a server that stops, ends the wait and never the call in its session.
"""

import asyncio
from types import TracebackType
from typing import Self

from starlette.requests import Request

from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.server.counters import GatewayCounters
from rollart_flow.gateway.server.keys import Answering
from rollart_flow.gateway.server.sending import ClientLeftError, ResponseSender
from rollart_flow.gateway.wires.base import ProviderWire

OPENING_S = 0.25
"""Time for which a stream does not begin [s], so that a refusal without delay has its own status
instead of an event in a stream."""
HEARTBEAT_S = 3.0
"""Time between two heartbeats [s]."""


class AnswerWait:
    """The wait of one request for the answer of its session, as a context.

    Args:
        session: the session.
        call: the call.
        request: the request, whose body is read.
        stopping: done once the server stops.
    """

    def __init__(
        self,
        session: Answering,
        call: ModelCall,
        request: Request,
        stopping: asyncio.Future[None],
    ) -> None:
        self._session, self._call, self._request = session, call, request
        self._stopping = stopping
        self.answered = False
        """Whether the session has answered, and the request has got it."""

    async def __aenter__(self) -> Self:
        self._answer = asyncio.create_task(self._session.answer(self._call), name="answer")
        self._left = asyncio.create_task(self._departure(), name="departure")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = self._answer, self._left
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not self._answer.cancelled():
            self._answer.exception()  # it was raised by `within`, or nobody is left to hear it

    async def _departure(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def answer(self) -> ModelAnswer:
        """Return the answer.

        Raises:
            CallRefusedError, ClientLeftError: see `within`.
        """
        answer = await self.within(None)
        assert answer is not None, "a wait without a limit ends with an answer or an error"
        return answer

    async def within(self, seconds: float | None) -> ModelAnswer | None:
        """Return the answer, or None if there is none after a time.

        Raises:
            CallRefusedError: the call gets no answer.
            ClientLeftError: the client hung up.
        """
        await asyncio.wait(
            (self._answer, self._left, self._stopping),
            timeout=seconds,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._answer.done():
            answer = self._answer.result()
            self.answered = True
            return answer
        if self._left.done():
            raise ClientLeftError
        if self._stopping.done():
            raise CallRefusedError(Refusal.SEALED, "the gateway has stopped")
        return None


class AnswerStream:
    """One streamed answer.

    Args:
        wire: wire of the client.
        call: its call.
        sender: sends to the client.
        counters: counts heartbeats.
    """

    def __init__(
        self, wire: ProviderWire, call: ModelCall, sender: ResponseSender, counters: GatewayCounters
    ) -> None:
        self._wire, self._call = wire, call
        self._sender = sender
        self._counters = counters
        self._sent = 0

    async def run(self, wait: AnswerWait) -> None:
        """Send the answer, or in a stream that has begun why there is none.

        Raises:
            CallRefusedError: the call gets no answer, and the stream has not begun.
            ClientLeftError: the client hung up.
        """
        loop = asyncio.get_running_loop()
        answer = await wait.within(OPENING_S)
        began = loop.time()
        try:
            while answer is None:
                await self._heartbeat()
                answer = await wait.within(HEARTBEAT_S)
        except CallRefusedError as error:
            if not self._sent:
                raise
            await self._sender.body(self._wire.refused_in_stream(error, self._call, self._sent))
            return
        finally:
            if self._sent:
                self._counters.held_s += loop.time() - began
        events = b"".join(self._wire.stream(answer, self._call, self._sent))
        if not self._sent:
            await self._begin()
        await self._sender.body(events)

    async def _begin(self) -> None:
        await self._sender.begin(200, self._wire.stream_headers(self._call))

    async def _heartbeat(self) -> None:
        if not self._sent:
            await self._begin()
        await self._sender.body(self._wire.heartbeat(self._call, self._sent), more=True)
        self._sent += 1
        self._counters.heartbeats += 1

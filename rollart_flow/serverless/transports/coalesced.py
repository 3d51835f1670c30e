"""Many calls in few messages, where a message costs far more than a call.

Calls that are made in one turn of the loop travel in one message, and so do those that are made
within `GATHER_S` while the receiver has others to work on. Answers come back as a stream, in any
order and several at a time, so that a slow call delays no other of its message.

Invariant: every call ends, with its own answer or with the error of its message; and a message of
which nobody waits for an answer any more is given up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from rollart_flow.errors import EndpointTroubleError, ServerlessError

FIRST = 8
"""Calls of a message while it is not known how many the receiver works on at a time."""

GATHER_S = 0.005
"""Seconds that what could travel alone waits for company."""

Answers = tuple[int, list[tuple[int, bytes]]]
"""(calls that the receiver works on at a time, [(place in the message, answer)])."""

Open = Callable[[list[bytes]], AsyncIterator[Answers]]
"""Sends a message of calls, where it can at once; what is read from it ends when all are answered.
Both raise the errors of `Transport.send`."""

_Waiting = dict[int, asyncio.Future[bytes]]
"""Calls of a message without an answer, by their places."""


class Coalescer:
    """The calls of one client. Used by one event loop."""

    def __init__(self, open_message: Open) -> None:
        """Send nothing yet."""
        self._open = open_message
        self._most = FIRST
        self._unsent: list[tuple[bytes, asyncio.Future[bytes]]] = []
        self._messages: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    async def call(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            EndpointTroubleError: the message broke off before this call was answered.
            ServerlessError: it was refused, or `close` was called.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._unsent.append((body, answer))
        if len(self._unsent) >= self._most:
            self._send()  # many callers may be in line before the end of this turn
        elif len(self._unsent) == 1:
            self._send_later(loop)
        return await answer

    async def close(self) -> None:
        """Give up all messages. May be called twice."""
        messages = tuple(self._messages)
        for message in messages:
            message.cancel()
        await asyncio.gather(*messages, return_exceptions=True)

    def _send_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """At the end of this turn, or in a while where the receiver has a message to work on."""
        if self._messages:
            self._timer = loop.call_later(GATHER_S, self._send)
        else:
            self._timer = loop.call_soon(self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        unsent, self._unsent = [call for call in self._unsent if not call[1].done()], []
        while unsent:  # who receives gets no more at a time than it works on
            calls, unsent = unsent[: self._most], unsent[self._most :]
            waiting = {place: answer for place, (_, answer) in enumerate(calls)}
            try:
                received = self._open([body for body, _ in calls])
            except Exception as error:  # noqa: BLE001  whatever it is, all who wait are told
                _fail(waiting, error)
                continue
            message = asyncio.create_task(self._exchange(received, waiting))
            self._messages.add(message)
            message.add_done_callback(partial(self._ended, waiting))
            for answer in waiting.values():
                answer.add_done_callback(partial(_give_up, message, waiting))

    async def _exchange(self, received: AsyncIterator[Answers], waiting: _Waiting) -> None:
        async for most, answers in received:
            self._most = most
            for place, body in answers:
                if not (answer := waiting.pop(place)).done():
                    answer.set_result(body)

    def _ended(self, waiting: _Waiting, message: asyncio.Task[None]) -> None:
        """Tell who still waits for an answer why there is none."""
        self._messages.discard(message)
        error: BaseException
        if message.cancelled():
            error = ServerlessError("the connection was closed before there was an answer")
        else:
            part = EndpointTroubleError("only a part of the calls was answered")
            error = message.exception() or part
        _fail(waiting, error)


def _fail(waiting: _Waiting, error: BaseException) -> None:
    for answer in waiting.values():
        if not answer.done():
            answer.set_exception(error)


def _give_up(message: asyncio.Task[None], waiting: _Waiting, answer: asyncio.Future[bytes]) -> None:
    """End a message when the last who waited for it has given up."""
    if answer.cancelled() and all(each.cancelled() for each in waiting.values()):
        message.cancel()

"""Coalescing of many calls into few messages, for transports whose messages cost far more than a
call.

Calls made in one turn of the event loop are sent in one message, and so are calls made within
`GATHER_S` while the receiver is busy with others. Answers come back as a stream, in any order and
several at a time, so that a slow call does not delay others of its message.

Invariant: every call ends with its own answer or with the error of its message, and a message is
cancelled when no caller waits for its answers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

from rollart_flow.errors import EndpointTroubleError, ServerlessError

FIRST = 8
"""Number of calls per message until the receiver has reported its concurrency."""

GATHER_S = 0.005
"""Seconds that a call or an answer waits to be sent together with others."""

Answers = tuple[int, list[tuple[int, bytes]]]
"""Type of one item of answers: (concurrent calls of the receiver, [(index in the message,
answer)])."""

Open = Callable[[list[bytes]], AsyncIterator[Answers]]
"""A function that sends a message of calls, immediately if it can.

The returned iterator ends when all calls are answered. Both raise the errors of `Transport.send`.
"""

_Waiting = dict[int, asyncio.Future[bytes]]
"""Unanswered calls of a message, by their index."""


class Coalescer:
    """A sender that coalesces the calls of one client. Used by one event loop."""

    def __init__(self, open_message: Open) -> None:
        self._open = open_message
        self._most = FIRST
        self._unsent: list[tuple[bytes, asyncio.Future[bytes]]] = []
        self._messages: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    async def call(self, body: bytes) -> bytes:
        """Return the answer to one call.

        Raises:
            EndpointTroubleError: the message broke off before this call was answered.
            ServerlessError: the message was refused, or `close` was called.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._unsent.append((body, answer))
        if len(self._unsent) >= self._most:
            self._send()  # more callers may follow before the end of this turn
        elif len(self._unsent) == 1:
            self._send_later(loop)
        return await answer

    async def close(self) -> None:
        messages = tuple(self._messages)
        for message in messages:
            message.cancel()
        await asyncio.gather(*messages, return_exceptions=True)

    def _send_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule sending at the end of this turn, or after `GATHER_S` if the receiver is busy
        with a message."""
        if self._messages:
            self._timer = loop.call_later(GATHER_S, self._send)
        else:
            self._timer = loop.call_soon(self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        unsent, self._unsent = [call for call in self._unsent if not call[1].done()], []
        while unsent:  # a message has no more calls than the receiver runs at a time
            calls, unsent = unsent[: self._most], unsent[self._most :]
            waiting = {place: answer for place, (_, answer) in enumerate(calls)}
            try:
                received = self._open([body for body, _ in calls])
            except Exception as error:  # noqa: BLE001  any error must reach all callers
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
        """Fail the calls that are still unanswered when a message ends."""
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
    """Cancel a message when the last of its callers has been cancelled."""
    if answer.cancelled() and all(each.cancelled() for each in waiting.values()):
        message.cancel()

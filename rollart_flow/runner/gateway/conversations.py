"""Conversations: the calls under one key, as attempts one after the other.

A program that is pointed at a gateway by hand does not say where a task ends. A time without calls
does: the session is sealed, and the next call begins another one.

The invariant: what a client has got is recorded within `settle_s` and the time of a commit, also of
a session that goes on; only calls under way are lost with the process.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rollart_flow.gateway.core.calls import ModelAnswer, ModelCall
from rollart_flow.gateway.core.exchange import Exchange
from rollart_flow.gateway.core.session import CaptureSession

_STOPPED = "The gateway has stopped."
SETTLE_S = 2.0
"""Time from an answer until it is recorded [s]; answers that come meanwhile go with it."""


class Conversations:
    """Sessions of one key.

    Args:
        make: makes the session of the conversation with a number, from 0.
        record: records what a session has by now and was not recorded before.
        idle_s: time without a call after which a conversation has ended [s].
        settle_s: time from an answer until the session is recorded [s].
    """

    def __init__(
        self,
        make: Callable[[int], CaptureSession],
        record: Callable[[int, CaptureSession], Coroutine[Any, Any, None]],
        idle_s: float,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._make, self._record = make, record
        self._idle_s, self._settle_s = idle_s, settle_s
        self._session: CaptureSession | None = None
        self._count = 0
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._recordings: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error of a conversation that could not be recorded."""

    @property
    def exchanges(self) -> Sequence[Exchange]:
        """Calls of the conversation that goes on."""
        return () if self._session is None else self._session.exchanges

    async def answer(self, call: ModelCall) -> ModelAnswer:
        """Answer a call; see `CaptureSession.answer`."""
        session = self._begin_call()
        try:
            return await session.answer(call)
        finally:
            self._end_call()

    def unread(self, call: ModelCall, *, sent: bool) -> None:
        """Take note that an answer was not sent whole; see `CaptureSession.unread`.

        A connection that ends after a whole answer says nothing here: by hand, a program that asks
        once and ends is often started again with the same words, for another answer.
        """
        if self._session is not None and not sent:
            self._session.unread(call, sent=sent)

    async def count(self, call: ModelCall) -> int:
        """Count the tokens of a call's prompt; see `CaptureSession.count`."""
        session = self._begin_call()
        try:
            return await session.count(call)
        finally:
            self._end_call()

    def _begin_call(self) -> CaptureSession:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session is None:
            self._session = self._make(self._count)
            self._count += 1
        self._under_way += 1
        return self._session

    def _end_call(self) -> None:
        self._under_way -= 1
        if self._session is None:
            return
        loop = asyncio.get_running_loop()
        if self._settling is None:
            self._settling = loop.call_later(self._settle_s, self._settle)
        if not self._under_way:
            self._timer = loop.call_later(self._idle_s, self._end_conversation)

    def _settle(self) -> None:
        """Record what the session has by now."""
        self._settling = None
        if self._session is not None:
            self._start(self._record(self._count - 1, self._session))

    def _end_conversation(self) -> None:
        session, self._session, self._timer = self._session, None, None
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if session is not None:
            self._start(self._sealed(self._count - 1, session))

    async def _sealed(self, number: int, session: CaptureSession) -> None:
        await session.seal()
        await self._record(number, session)

    def _start(self, recording: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(recording, name="recording")
        self._recordings.add(task)
        task.add_done_callback(self._recorded)

    def _recorded(self, task: asyncio.Task[None]) -> None:
        self._recordings.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def close(self) -> None:
        """End the conversation that goes on, and return once all are recorded.

        What is under way gets a text of the gateway's own as its answer.

        Raises:
            StoreError: a conversation could not be recorded.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None:
            self._session.finish(_STOPPED)
        self._end_conversation()
        if self._recordings:
            await asyncio.wait(self._recordings)
        if self.failed.done():
            self.failed.result()

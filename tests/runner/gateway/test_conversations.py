"""Conversations under one key: time without calls ends one, and each is recorded once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollart_flow.errors import StoreError
from rollart_flow.gateway.core.calls import CallRefusedError, ModelAnswer, ModelCall, Refusal
from rollart_flow.gateway.core.session import CaptureSession
from rollart_flow.runner.gateway.conversations import SETTLE_S, Conversations
from rollart_flow.simulation import run
from tests.gateway.server.scripted import Script, ScriptedSession, after, at_once

IDLE_S = 30.0
CALL = ModelCall(wire="chat", messages=())


class Kept:
    """Conversations, and what became of them."""

    def __init__(self, script: Script) -> None:
        self.made: list[ScriptedSession] = []
        self.recorded: list[tuple[int, float]] = []
        """Conversations that have ended, and when."""
        self.settled: list[tuple[int, float]] = []
        """Those that went on when they were recorded."""
        self.error: StoreError | None = None
        self._script = script
        self.conversations = Conversations(self._make, self._record, IDLE_S)

    def _make(self, number: int) -> CaptureSession:
        assert number == len(self.made)
        self.made.append(ScriptedSession(self._script))
        return self.made[-1]

    async def _record(self, number: int, session: CaptureSession) -> None:
        assert session is self.made[number]
        if self.error is not None:
            raise self.error
        found = self.recorded if self.made[number].sealed else self.settled
        found.append((number, asyncio.get_running_loop().time()))


def kept(test: Callable[[Kept], Awaitable[None]], script: Script = at_once) -> None:
    async def main() -> None:
        await test(Kept(script))

    run(main())


def test_time_without_calls_ends_a_conversation() -> None:
    async def test(kept: Kept) -> None:
        await kept.conversations.answer(CALL)
        await asyncio.sleep(IDLE_S - 1)
        await kept.conversations.count(CALL)
        await asyncio.sleep(IDLE_S + 1)
        assert kept.recorded == [(0, 2 * IDLE_S - 1)]
        await kept.conversations.answer(CALL)
        await kept.conversations.close()
        assert [number for number, _ in kept.recorded] == [0, 1]
        assert [len(session.calls) for session in kept.made] == [1, 1]

    kept(test)


def test_what_was_answered_is_recorded_while_the_conversation_goes_on() -> None:
    async def test(kept: Kept) -> None:
        for _ in range(6):
            await kept.conversations.answer(CALL)
            await asyncio.sleep(0.5)
        assert kept.settled == [(0, SETTLE_S)], "without a pause too"
        await asyncio.sleep(SETTLE_S)
        assert kept.settled == [(0, SETTLE_S), (0, 2 * SETTLE_S)]
        await asyncio.sleep(IDLE_S)
        assert len(kept.settled) == 2, "nothing was answered since"
        assert [number for number, _ in kept.recorded] == [0]

    kept(test)


def test_a_long_call_is_no_idle_time() -> None:
    async def test(kept: Kept) -> None:
        both = [kept.conversations.answer(CALL) for _ in range(2)]
        await asyncio.gather(*both)
        assert not kept.recorded
        await asyncio.sleep(IDLE_S + 1)
        assert kept.recorded == [(0, 11 * IDLE_S)]
        assert len(kept.made) == 1

    kept(test, after(10 * IDLE_S))


def test_the_end_gives_what_is_under_way_a_last_answer() -> None:
    async def test(kept: Kept) -> None:
        calling = asyncio.create_task(kept.conversations.answer(CALL))
        await asyncio.sleep(1)
        await kept.conversations.close()
        assert kept.recorded == [(0, 1.0)]
        assert (await calling).action.text == "The gateway has stopped."

    kept(test, after(1000))


def test_a_conversation_that_cannot_be_recorded_ends_the_gateway() -> None:
    async def test(kept: Kept) -> None:
        kept.error = StoreError("the disk is full")
        await kept.conversations.answer(CALL)
        await asyncio.sleep(IDLE_S + 1)
        assert kept.conversations.failed.done()
        with pytest.raises(StoreError, match="the disk is full"):
            await kept.conversations.close()

    kept(test)


def test_no_call_leaves_nothing() -> None:
    async def test(kept: Kept) -> None:
        await kept.conversations.close()
        assert not kept.made
        assert not kept.recorded

    kept(test)


def test_a_refused_call_counts_as_a_call() -> None:
    async def refusing(call: ModelCall) -> ModelAnswer:
        raise CallRefusedError(Refusal.ENGINE, "no worker is left")

    async def test(kept: Kept) -> None:
        with pytest.raises(CallRefusedError):
            await kept.conversations.answer(CALL)
        await asyncio.sleep(IDLE_S + 1)
        assert kept.recorded == [(0, IDLE_S)]

    kept(test, refusing)

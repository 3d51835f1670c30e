"""Calls that share messages: who travels with whom, and who is told what."""

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest

from rollart_flow.errors import EndpointTroubleError, ServerlessError
from rollart_flow.serverless.transports.coalesced import FIRST, GATHER_S, Answers, Coalescer
from rollart_flow.simulation import run

PLACES = 3


class Receiver:
    """Answers each call after the seconds that its body is; `never` after none.

    A port of the test: what is tested is which calls share a message, and when each is answered.
    """

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []
        self.given_up: list[float] = []

    async def open(self, calls: list[bytes]) -> AsyncIterator[Answers]:
        """The answers in the order of their times; `break` and `part` end the message early."""
        self.messages.append(calls)
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            for call in sorted(calls):
                if call == b"break":
                    raise EndpointTroubleError("the replica died")
                if call == b"bug":
                    raise KeyError("bug")
                if call == b"part":
                    return
                if call == b"never":
                    await asyncio.Event().wait()
                await asyncio.sleep(start + float(call) - loop.time())
                yield PLACES, [(calls.index(call), call)]
        except asyncio.CancelledError:
            self.given_up.append(loop.time())
            raise


async def answer_and_time(answer: Awaitable[bytes]) -> tuple[bytes, float]:
    return await answer, asyncio.get_running_loop().time()


def test_calls_of_one_turn_share_a_message_and_later_ones_have_another() -> None:
    async def test() -> None:
        calls = Coalescer(receiver.open)
        await asyncio.gather(calls.call(b"1"), calls.call(b"2"))
        await calls.call(b"3")

    receiver = Receiver()
    run(test())
    assert receiver.messages == [[b"1", b"2"], [b"3"]]


def test_calls_gather_while_others_are_worked_on_and_leave_at_once_when_a_message_is_full() -> None:
    async def test() -> None:
        calls = Coalescer(receiver.open)
        busy = asyncio.ensure_future(calls.call(b"never"))
        await asyncio.sleep(1.0)
        asked = asyncio.ensure_future(answer_and_time(calls.call(b"0")))
        await asyncio.sleep(GATHER_S / 2)
        other = asyncio.ensure_future(answer_and_time(calls.call(b"1")))
        assert await asked == (b"0", 1.0 + GATHER_S)
        assert await other == (b"1", 2.0 + GATHER_S)
        full = (answer_and_time(calls.call(body)) for body in (b"0", b"00", b"000"))
        assert {time for _, time in await asyncio.gather(*full)} == {2.0 + GATHER_S}
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)

    receiver = Receiver()
    run(test())
    assert receiver.messages == [[b"never"], [b"0", b"1"], [b"0", b"00", b"000"]]


def test_a_slow_call_delays_no_other_of_its_message() -> None:
    async def test() -> None:
        calls = Coalescer(receiver.open)
        hung = asyncio.ensure_future(calls.call(b"never"))
        quick = (answer_and_time(calls.call(body)) for body in (b"2", b"1"))
        assert await asyncio.gather(*quick) == [(b"2", 2.0), (b"1", 1.0)]
        assert not hung.done()
        await calls.close()
        with pytest.raises(ServerlessError, match="closed before there was an answer"):
            await hung

    receiver = Receiver()
    run(test())
    assert len(receiver.messages) == 1


def test_a_message_is_no_longer_than_what_its_receiver_works_on() -> None:
    async def test() -> None:
        calls = Coalescer(receiver.open)
        for _ in range(2):
            await asyncio.gather(*(calls.call(b"%d" % n) for n in range(FIRST + 1)))

    receiver = Receiver()
    run(test())
    assert [len(message) for message in receiver.messages] == [FIRST, 1, 3, 3, 3]


@pytest.mark.parametrize("end", [b"break", b"part"])
def test_a_message_that_breaks_off_is_trouble_to_those_without_an_answer(end: bytes) -> None:
    async def test() -> list[bytes | BaseException]:
        calls = Coalescer(receiver.open)
        bodies = (b"1", end, end)
        return await asyncio.gather(*map(calls.call, bodies), return_exceptions=True)

    receiver = Receiver()
    answered, *lost = run(test())
    assert answered == b"1"
    assert [type(error) for error in lost] == [EndpointTroubleError] * 2


def test_an_error_that_nobody_foresaw_reaches_who_waits() -> None:
    with pytest.raises(KeyError, match="bug"):
        run(Coalescer(Receiver().open).call(b"bug"))


def test_a_message_that_cannot_be_sent_fails_its_calls_and_no_other_message() -> None:
    def refuse_the_first(calls: list[bytes]) -> AsyncIterator[Answers]:
        if b"bug" in calls:
            raise KeyError("bug")
        return receiver.open(calls)

    async def test() -> list[bytes | BaseException]:
        calls = Coalescer(refuse_the_first)
        bodies = (*[b"bug"] * FIRST, b"1")
        return await asyncio.gather(*map(calls.call, bodies), return_exceptions=True)

    receiver = Receiver()
    *lost, answered = run(test())
    assert [type(error) for error in lost] == [KeyError] * FIRST
    assert answered == b"1"


def test_a_message_is_given_up_with_the_last_who_waits_for_it() -> None:
    async def test() -> None:
        calls = Coalescer(receiver.open)
        asked = [asyncio.ensure_future(calls.call(body)) for body in (b"1", b"never", b"never")]
        await asked[0]
        for each in asked[1:]:
            await asyncio.sleep(1.0)
            assert receiver.given_up == []
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.sleep(1.0)
        assert len(asyncio.all_tasks()) == 1

    receiver = Receiver()
    run(test())
    assert receiver.given_up == [3.0]


def test_who_gives_up_before_the_message_is_sent_is_not_in_it() -> None:
    async def test() -> None:
        calls = Coalescer(receiver.open)
        given_up = asyncio.ensure_future(calls.call(b"never"))
        kept = asyncio.ensure_future(calls.call(b"1"))
        asyncio.get_running_loop().call_soon(given_up.cancel)
        assert await kept == b"1"

    receiver = Receiver()
    run(test())
    assert receiver.messages == [[b"1"]]

"""Attempts, hedges and the breaker, to the second: under virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from rollart_flow.errors import (
    EndpointTroubleError,
    RewardTimeoutError,
    ServerlessError,
    SettingsError,
)
from rollart_flow.serverless.caller import Caller
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports import Transport
from rollart_flow.simulation import run

Reply = Callable[[], Coroutine[Any, Any, bytes]]


class Scripted(Transport):
    """An endpoint whose n-th request has a known fate; it writes down when each came and went.

    A port of the test, as the engines and environments of the control plane's tests are: what is
    tested is when requests are sent, which no real endpoint could say to the second.
    """

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.sent: list[float] = []
        self.cancelled: list[float] = []

    async def send(self, body: bytes, timeout_s: float) -> bytes:
        now = asyncio.get_running_loop().time
        self.sent.append(now())
        reply = self.replies[min(len(self.sent), len(self.replies)) - 1]
        try:
            async with asyncio.timeout(timeout_s):
                return await reply()
        except TimeoutError:
            raise EndpointTroubleError("no answer") from None
        except asyncio.CancelledError:
            self.cancelled.append(now())
            raise


def answers(body: bytes, after_s: float = 0.0) -> Reply:
    async def reply() -> bytes:
        await asyncio.sleep(after_s)
        return body

    return reply


def fails(retry_after_s: float = 0.0) -> Reply:
    async def reply() -> bytes:
        raise EndpointTroubleError("status 503", retry_after_s)

    return reply


async def refuses() -> bytes:
    raise ServerlessError("status 404")


async def breaks() -> bytes:
    raise KeyError("bug")


async def hangs() -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


class Longest(Random):
    """Draws the longest pause."""

    def uniform(self, a: float, b: float) -> float:
        return b


def caller(transport: Transport, **policy: Any) -> Caller:
    settings: dict[str, Any] = {
        "breaker_failures": 1000, "hedge_after_s": None, "backoff_s": 1.0, "deadline_s": 3600.0
    }  # fmt: skip
    return Caller(transport, CallPolicy(**{**settings, **policy}), Longest())


def test_pauses_double_up_to_the_cap() -> None:
    endpoint = Scripted(*[fails()] * 5, answers(b"late"))
    assert run(caller(endpoint, backoff_cap_s=4.0).call(b"")) == b"late"
    assert endpoint.sent == [0, 1, 3, 7, 11, 15]


def test_pauses_are_drawn_so_that_calls_do_not_come_back_together() -> None:
    endpoint = Scripted(*[fails()] * 3, answers(b"late"))
    policy = CallPolicy(hedge_after_s=None, backoff_s=1.0)
    run(Caller(endpoint, policy, Random(1)).call(b""))
    pauses = [
        after - before for before, after in zip(endpoint.sent, endpoint.sent[1:], strict=False)
    ]
    assert all(0 < pause < longest for pause, longest in zip(pauses, (1, 2, 4), strict=True))


def test_what_an_endpoint_asks_to_wait_is_waited() -> None:
    endpoint = Scripted(fails(retry_after_s=30.0), answers(b"yes"))
    assert run(caller(endpoint).call(b"")) == b"yes"
    assert endpoint.sent == [0, 31]  # and then a drawn pause: all calls were told the same


def test_a_deadline_tells_what_the_last_attempt_came_to() -> None:
    async def test() -> float:
        with pytest.raises(RewardTimeoutError, match=r"^no answer within 9 s; the last .* 503$"):
            await caller(endpoint, deadline_s=9.0).call(b"")
        return asyncio.get_running_loop().time()

    endpoint = Scripted(fails(), hangs)
    assert run(test()) == 9
    assert endpoint.cancelled == [9]


def test_attempts_come_to_an_end() -> None:
    endpoint = Scripted(fails())
    with pytest.raises(EndpointTroubleError, match=r"status 503 \(3 attempts\)"):
        run(caller(endpoint, attempts=3).call(b""))
    assert len(endpoint.sent) == 3


def test_a_refusal_is_not_tried_again() -> None:
    endpoint = Scripted(refuses)
    with pytest.raises(ServerlessError, match="status 404"):
        run(caller(endpoint).call(b""))
    assert len(endpoint.sent) == 1


def test_an_attempt_that_takes_too_long_is_made_again() -> None:
    endpoint = Scripted(hangs, answers(b"yes"))
    assert run(caller(endpoint, attempt_timeout_s=5.0).call(b"")) == b"yes"
    assert endpoint.sent == [0, 6]


def test_a_slow_call_is_hedged_and_the_first_answer_wins() -> None:
    async def test() -> float:
        assert await caller(endpoint, hedge_after_s=2.0).call(b"") == b"second"
        return asyncio.get_running_loop().time()

    endpoint = Scripted(hangs, answers(b"second", after_s=1.0))
    assert run(test()) == 3
    assert endpoint.sent == [0, 2]
    assert endpoint.cancelled == [3]


def test_the_first_request_may_win_over_its_hedge() -> None:
    endpoint = Scripted(answers(b"first", after_s=3.0), hangs)
    assert run(caller(endpoint, hedge_after_s=2.0).call(b"")) == b"first"
    assert endpoint.cancelled == [3]


def test_a_hedge_that_fails_leaves_the_first_request_alone() -> None:
    endpoint = Scripted(answers(b"first", after_s=3.0), fails())
    assert run(caller(endpoint, hedge_after_s=2.0).call(b"")) == b"first"
    assert endpoint.cancelled == []


def test_a_quick_call_is_not_hedged() -> None:
    endpoint = Scripted(answers(b"first", after_s=1.0))
    run(caller(endpoint, hedge_after_s=2.0).call(b""))
    assert endpoint.sent == [0]


def test_nothing_outlives_a_call_that_is_given_up() -> None:
    async def test() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await caller(endpoint, hedge_after_s=2.0).call(b"")
        assert len(asyncio.all_tasks()) == 1

    endpoint = Scripted(hangs)
    run(test())
    assert endpoint.cancelled == [10, 10]


def test_a_broken_endpoint_is_left_alone_and_then_tried_by_one() -> None:
    """Ten callers, three failures in a row: nine wait, one tries, and all are answered."""

    async def test() -> list[bytes]:
        calls = caller(endpoint, breaker_failures=3, breaker_reset_s=60.0, backoff_s=0.1)
        first = [asyncio.ensure_future(calls.call(b"")) for _ in range(3)]
        await asyncio.sleep(20.0)
        later = [asyncio.ensure_future(calls.call(b"")) for _ in range(7)]
        return await asyncio.gather(*first, *later)

    endpoint = Scripted(*[fails()] * 3, answers(b"well again", after_s=1.0))
    assert run(test()) == [b"well again"] * 10
    assert endpoint.sent == [0, 0, 0, 60] + [61] * 9


def test_a_trial_that_fails_keeps_the_breaker_open() -> None:
    endpoint = Scripted(*[fails()] * 2, answers(b"yes"))
    calls = caller(endpoint, breaker_failures=1, breaker_reset_s=60.0)
    assert run(calls.call(b"")) == b"yes"
    assert endpoint.sent == [0, 60, 120]


def test_a_trial_that_is_given_up_lets_another_try() -> None:
    async def test() -> None:
        calls = caller(endpoint, breaker_failures=1, breaker_reset_s=10.0)
        trial = asyncio.ensure_future(calls.call(b""))
        await asyncio.sleep(9.0)
        waiting = asyncio.ensure_future(calls.call(b""))
        await asyncio.sleep(5.0)
        trial.cancel()
        assert await waiting == b"yes"

    endpoint = Scripted(fails(), hangs, answers(b"yes"))
    run(test())
    assert endpoint.sent == [0, 10, 14]


def test_a_trial_that_ends_in_what_nobody_foresaw_lets_another_try() -> None:
    async def test() -> None:
        calls = caller(endpoint, breaker_failures=1, breaker_reset_s=10.0)
        trial = asyncio.ensure_future(calls.call(b""))
        await asyncio.sleep(9.0)
        waiting = asyncio.ensure_future(calls.call(b""))
        with pytest.raises(KeyError, match="bug"):
            await trial
        assert await waiting == b"yes"

    endpoint = Scripted(fails(), breaks, answers(b"yes"))
    run(test())
    assert endpoint.sent == [0, 10, 10]


def test_a_refusal_shows_that_the_endpoint_is_there() -> None:
    async def test() -> None:
        calls = caller(endpoint, breaker_failures=2, breaker_reset_s=60.0, attempts=1)
        for _ in range(3):
            with pytest.raises(ServerlessError, match="status"):
                await calls.call(b"")
        assert await calls.call(b"") == b"yes"

    endpoint = Scripted(fails(), refuses, fails(), answers(b"yes"))
    run(test())
    assert endpoint.sent == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline_s": 0}, {"deadline_s": float("nan")}, {"attempts": 0}, {"attempts": 1.5},
        {"hedge_after_s": -1.0}, {"max_concurrent": True}, {"breaker_reset_s": None},
    ],
)  # fmt: skip
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(SettingsError, match=f"^{name} should be "):
        CallPolicy(**wrong)

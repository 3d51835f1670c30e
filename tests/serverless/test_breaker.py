"""The circuit breaker of an endpoint: what opens it, and how it is tried again."""

import asyncio

import pytest

from rollart_flow.errors import ServerlessError
from rollart_flow.simulation import run
from tests.serverless.scripted import Scripted, answers, breaks, caller, fails, hangs, refuses


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

"""Attempts, hedges and the breaker, to the second: under virtual time."""

import asyncio
from random import Random

import pytest

from rollart_flow.errors import EndpointTroubleError, RewardTimeoutError, ServerlessError
from rollart_flow.serverless.caller import Caller
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.simulation import run
from tests.serverless.scripted import Scripted, answers, caller, fails, hangs, refuses


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

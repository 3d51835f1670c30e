"""Rewards over real HTTP: the whole way there and back, and every trouble on it."""

import asyncio
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat

import pytest

from rollart_flow.errors import (
    ContractError,
    EndpointTroubleError,
    RewardFailedError,
    RewardNotFiniteError,
    RewardTimeoutError,
    ServerlessError,
    SettingsError,
)
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.score import Scorer
from rollart_flow.serverless import CallPolicy, Endpoint, ServerlessReward
from rollart_flow.types import Outcome, Reason, Trajectory
from tests.builders import TRAJECTORY, attempt
from tests.rewards import functions
from tests.serverless.servers import raw_server, response, serving

QUICK = CallPolicy(deadline_s=20.0, backoff_s=0.001, hedge_after_s=None)


@pytest.mark.parametrize("scheme", ["http", "fc"])
def test_a_reward_and_its_parts_come_back(scheme: str) -> None:
    async def test() -> None:
        async with serving(functions.with_parts) as url:
            reward = ServerlessReward(url.replace("http", scheme), QUICK)
            assert await reward(TRAJECTORY) == (0.5, {"right": 1.0, "short": -0.5})
            await reward.close()

    asyncio.run(test())


def test_it_runs_in_the_server_and_a_pickled_client_works_alike() -> None:
    async def test() -> None:
        async with serving(functions.pid) as url:
            reward = ServerlessReward(url, QUICK)
            await reward.warm(3)
            assert await reward(TRAJECTORY) != os.getpid()
            copy: ServerlessReward = pickle.loads(pickle.dumps(reward))
            assert await copy(TRAJECTORY) == await reward(TRAJECTORY)
            await copy.close()
            await reward.close()
            await reward.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (functions.raises, RewardFailedError, "KeyError: 'gold answer'"),
        (functions.nan, RewardNotFiniteError, "returned nan"),
    ],
)
def test_the_functions_own_errors_are_permanent(
    function: RewardFunction, error: type[Exception], said: str
) -> None:
    async def test() -> None:
        async with serving(function) as url:
            reward = ServerlessReward(url, QUICK)
            with pytest.raises(error, match=said):
                await reward(TRAJECTORY)
            await reward.close()

    asyncio.run(test())


async def called(replies: Iterator[bytes | None], policy: CallPolicy = QUICK) -> tuple[object, int]:
    """(what a reward came to, requests) where each request has a fate: bytes, or None: it hangs.

    Where the fate is empty, a good endpoint answers.
    """
    good = Endpoint(functions.in_the_loop)
    requests = 0

    async def handle(body: bytes) -> bytes:
        nonlocal requests
        requests += 1
        fate = next(replies)
        if fate is None:
            await asyncio.Event().wait()
        return fate or response("200 OK", await good(body))

    async with raw_server(handle) as url:
        reward = ServerlessReward(url, policy)
        try:
            return await reward(TRAJECTORY), requests
        except Exception as error:  # noqa: BLE001  what it is, is what the tests look at
            return error, requests
        finally:
            await reward.close()


@pytest.mark.parametrize(
    "trouble",
    [
        response("503 Service Unavailable"),
        response("500 Internal Server Error", b"out of memory"),
        response("429 Too Many Requests", b"", "Retry-After: 0"),
        response("429 Too Many", b"", "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"),
        response("429 Too Many", b"", "Retry-After: Wed, 21 Oct 2015 07:28:00 -0000"),
        response("503 Busy", b"", "Retry-After: a while"),
        response("200 OK", b"no gzip", "Content-Encoding: gzip"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf an ans",
        b"HTTP/1.1 200",
    ],
)
def test_trouble_on_the_way_is_tried_again(trouble: bytes) -> None:
    result = asyncio.run(called(chain([trouble] * 2, repeat(b""))))
    assert result == (float(os.getpid()), 3)


def test_retry_after_is_honoured_up_to_the_deadline() -> None:
    busy = response("429 Too Many Requests", b"", "Retry-After: 3600")
    policy = replace(QUICK, deadline_s=0.2)
    error, requests = asyncio.run(called(repeat(busy), policy))
    assert isinstance(error, RewardTimeoutError)
    told = "no answer within 0.2 s; the last attempt: it answered with status 429"
    assert str(error) == told
    assert requests == 1


@pytest.mark.parametrize(
    ("fate", "kind", "said"),
    [
        (response("404 Not Found", b"no such function"), ServerlessError, "status 404: no such f"),
        (response("401 Unauthorized"), ServerlessError, "status 401"),
        (response("200 OK", b"<html>"), ContractError, "is no message of the reward contract"),
        (response("200 OK", b'{"schema_version": 1}'), ContractError, "schema_version 1"),
        (response("302 Found", b"", "Location: /login"), ServerlessError, "status 302"),
    ],
)
def test_refusals_are_not_tried_again(fate: bytes, kind: type[Exception], said: str) -> None:
    error, requests = asyncio.run(called(repeat(fate)))
    assert type(error) is kind
    assert said in str(error)
    assert requests == 1


def test_an_endpoint_that_is_not_there_is_trouble() -> None:
    async def test() -> None:
        async with raw_server(lambda body: asyncio.sleep(0, b"")) as url:
            pass
        reward = ServerlessReward(url, replace(QUICK, attempts=3))
        with pytest.raises(EndpointTroubleError, match=r"cannot be reached: .* \(3 attempts\)"):
            await reward(TRAJECTORY)
        await reward.close()

    asyncio.run(test())


def test_a_request_that_hangs_is_hedged() -> None:
    policy = replace(QUICK, hedge_after_s=0.05)
    assert asyncio.run(called(chain([None], repeat(b"")), policy)) == (float(os.getpid()), 2)


def test_a_reward_that_never_answers_is_timed_out_and_delays_no_other() -> None:
    async def some_hang(trajectory: Trajectory) -> float:
        if trajectory.attempt == 1:
            await asyncio.Event().wait()
        return float(trajectory.attempt)

    async def test() -> None:
        async with serving(some_hang) as url:
            scorer = Scorer(ServerlessReward(url, replace(QUICK, deadline_s=1.5)))
            hung = asyncio.ensure_future(scorer.score(attempt(1), 60.0))
            others = await asyncio.gather(*(scorer.score(attempt(n), 60.0) for n in range(2, 12)))
            assert [t.reward for t in others] == [float(n) for n in range(2, 12)]
            assert not hung.done()
            late = await hung
            assert (late.outcome, late.reason) == (Outcome.TIMED_OUT, Reason.REWARD_TIMEOUT)
            assert late.error is not None
            assert f"reward function {url}" in late.error
            await scorer.close()

    asyncio.run(test())


def test_places_are_limited() -> None:
    most = 0
    running = 0

    async def counts(trajectory: Trajectory) -> float:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return 0.0

    async def test() -> None:
        async with serving(counts) as url:
            reward = ServerlessReward(url, replace(QUICK, max_concurrent=3))
            await asyncio.gather(*(reward(attempt(n)) for n in range(12)))
            await reward.close()

    asyncio.run(test())
    assert most == 3


@pytest.mark.parametrize(
    "url", ["ftp://host", "http://", "my_rewards:score", "", "lambda:///", "https:/host"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is no address of a reward endpoint; give http://"):
        ServerlessReward(url)


def test_an_address_that_no_client_takes_is_no_address() -> None:
    reward = ServerlessReward("http://user:password@host:port/path")
    with pytest.raises(SettingsError, match=r"'http://host:port/path' is no web address") as raised:
        asyncio.run(reward(TRAJECTORY))
    assert "password" not in str(raised.value)


def test_secrets_of_an_address_are_told_nobody() -> None:
    reward = ServerlessReward("https://user:password@host:1/path?code=token#part")
    assert str(reward) == "https://host:1/path"
    with pytest.raises(SettingsError) as raised:
        ServerlessReward("ftp://user:password@host/path?code=token")
    assert "password" not in str(raised.value)
    assert "token" not in str(raised.value)

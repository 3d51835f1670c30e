"""The endpoint's side: one evaluation for each request id, whoever asks and how often."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from rollart_flow.errors import SettingsError
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.serverless import endpoint as module
from rollart_flow.serverless.contract import WARM, Answer, CallFailure, decode, encode, encode_call
from rollart_flow.serverless.endpoint import Endpoint, load_function
from rollart_flow.text import ERROR_CHARACTERS
from rollart_flow.types import Outcome, Trajectory
from tests.builders import TRAJECTORY, attempt
from tests.rewards import functions


def call(trajectory: Trajectory = TRAJECTORY, limit_s: float = 60.0) -> bytes:
    return encode_call(trajectory, limit_s)[1]


async def ask(endpoint: Endpoint, body: bytes) -> Answer:
    return Answer.from_json(decode(await endpoint(body)))


async def raises_a_document(trajectory: Trajectory) -> float:
    raise ValueError("word " * 10_000)


class Counting:
    """An async reward that says how many evaluations there were, once it is let go."""

    def __init__(self) -> None:
        self.numbers: Iterator[int] = count(1)
        self.let_go = asyncio.Event()

    async def __call__(self, trajectory: Trajectory) -> float:
        number = next(self.numbers)
        await self.let_go.wait()
        return float(number)


def test_who_asks_again_gets_the_same_answer_and_nothing_is_evaluated_twice() -> None:
    async def test() -> None:
        function = Counting()
        function.let_go.set()
        endpoint = Endpoint(function)
        body = call()
        assert [(await ask(endpoint, body)).reward for _ in range(3)] == [1.0, 1.0, 1.0]
        assert (await ask(endpoint, call(attempt(2)))).reward == 2.0

    asyncio.run(test())


def test_who_asks_at_the_same_time_shares_one_evaluation() -> None:
    async def test() -> None:
        function = Counting()
        endpoint = Endpoint(function)
        body = call()
        asked = [asyncio.ensure_future(ask(endpoint, body)) for _ in range(3)]
        await asyncio.sleep(0)
        asked[0].cancel()  # who gives up takes nobody along
        function.let_go.set()
        assert [(await each).reward for each in asked[1:]] == [1.0, 1.0]
        assert next(function.numbers) == 2

    asyncio.run(test())


def test_the_memory_of_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        function = Counting()
        function.let_go.set()
        endpoint = Endpoint(function)
        for number in (0, 1, 2):
            await ask(endpoint, call(attempt(number)))
        assert (await ask(endpoint, call(attempt(2)))).reward == 3.0
        assert (await ask(endpoint, call(attempt(0)))).reward == 4.0

    monkeypatch.setattr(module, "REMEMBERED", 2)
    asyncio.run(test())


def test_a_plain_function_runs_in_a_process_and_warm_ones_are_used() -> None:
    async def test() -> None:
        endpoint = Endpoint(functions.pid)
        await endpoint.warm(2)
        first = await ask(endpoint, call())
        assert first.reward != os.getpid()
        await endpoint.close()

    asyncio.run(test())


@pytest.mark.parametrize(
    ("function", "failure", "said"),
    [
        (functions.raises, CallFailure.FUNCTION, "raises: KeyError: 'gold answer'"),
        (functions.text, CallFailure.FUNCTION, "returned str as reward"),
        (functions.nan, CallFailure.NOT_FINITE, "returned nan as reward"),
        (functions.hangs, CallFailure.LATE, "no reward within"),
        (functions.hangs_in_the_loop, CallFailure.LATE, "no reward within"),
    ],
)
def test_what_fails_is_an_answer(function: RewardFunction, failure: CallFailure, said: str) -> None:
    async def test() -> None:
        endpoint = Endpoint(function)
        answer = await ask(endpoint, call(limit_s=0.5 if failure is CallFailure.LATE else 60.0))
        await endpoint.close()
        assert (answer.failure, answer.reward) == (failure, None)
        assert said in (answer.error or "")

    asyncio.run(test())


def test_what_was_given_up_before_it_began_is_evaluated_when_asked_again() -> None:
    async def test() -> None:
        function = Counting()
        function.let_go.set()
        endpoint = Endpoint(function)
        begun = endpoint.begin(call())
        await endpoint.close()
        assert begun.cancelled()
        assert (await ask(endpoint, call())).reward == 1.0

    asyncio.run(test())


def test_an_answer_holds_the_beginning_of_a_long_error() -> None:
    async def test() -> None:
        answer = await ask(Endpoint(raises_a_document), call())
        assert answer.failure is CallFailure.FUNCTION
        assert "ValueError: word word" in (answer.error or "")
        assert len(answer.error or "") == ERROR_CHARACTERS

    asyncio.run(test())


def test_a_call_without_any_time_left_is_not_evaluated() -> None:
    async def test() -> None:
        function = Counting()
        endpoint = Endpoint(function)
        answer = await ask(endpoint, call(limit_s=-1.0))
        assert (answer.failure, next(function.numbers)) == (CallFailure.LATE, 1)
        function.let_go.set()
        assert (await ask(endpoint, call())).reward == 2.0  # being late is not remembered

    asyncio.run(test())


def test_a_reward_that_never_answers_delays_no_other() -> None:
    async def some_hang(trajectory: Trajectory) -> float:
        if trajectory.attempt % 2:
            await asyncio.Event().wait()
        return float(trajectory.attempt)

    async def test() -> None:
        endpoint = Endpoint(some_hang)
        asked = [asyncio.ensure_future(ask(endpoint, call(attempt(n)))) for n in range(8)]
        done = [await each for each in asked[::2]]
        assert [answer.reward for answer in done] == [0.0, 2.0, 4.0, 6.0]
        assert not any(each.done() for each in asked[1::2])
        await endpoint.close()
        await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(test())


FAILED = replace(TRAJECTORY, outcome=Outcome.FAILED)


@pytest.mark.parametrize(
    ("body", "request_id", "said"),
    [
        (b"hello", "", "is no message of the reward contract"),
        (b'{"schema_version": 9}', "", "schema_version 9"),
        (b'{"schema_version": 3, "request_id": "x"}', "x", "missing required field `limit_s`"),
        (call(FAILED), encode_call(FAILED, 60.0)[0], "is failed has no reward"),
    ],
)
def test_what_is_no_call_is_refused_in_an_answer(body: bytes, request_id: str, said: str) -> None:
    answer = asyncio.run(ask(Endpoint(functions.turns), body))
    assert (answer.request_id, answer.failure) == (request_id, CallFailure.REFUSED)
    assert said in (answer.error or "")


def test_warming_asks_for_nothing() -> None:
    assert decode(asyncio.run(Endpoint(functions.raises)(encode(WARM)))) == WARM


def test_functions_are_found_by_name() -> None:
    assert load_function("tests.rewards.functions:turns") is functions.turns


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("turns", "'turns' is not module:function, such as"),
        ("tests.rewards.nothing:turns", "cannot be imported: ModuleNotFoundError"),
        ("tests.rewards.functions:missing", "has no function 'missing'"),
        ("tests.rewards.functions:os.sep", "has no function 'os.sep'"),
    ],
)
def test_a_wrong_name_is_one_line(name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as raised:
        load_function(name)
    assert "\n" not in str(raised.value)

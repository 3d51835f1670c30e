"""The endpoint's side of a call: any reward function as bytes in, bytes out.

Invariant: one request id is evaluated once at a time, and once in all as long as its answer is
remembered; who asks again, at the same time or later, gets the same answer.
"""

import asyncio
import importlib
from datetime import UTC, datetime
from typing import Any, cast

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.errors import ContractError, SettingsError
from rollart_flow.isolation.child import error_line
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.score import Scorer
from rollart_flow.serverless.contract import (
    WARM,
    Answer,
    CallFailure,
    RewardCall,
    decode,
    decode_call,
    encode,
    request_id_of,
)
from rollart_flow.types import TRAINABLE, Reason

REMEMBERED = 4096
"""Answers that are kept for whoever asks again; of a hundred bytes or so each."""

_ERROR_CHARACTERS = 2_000
"""Of an error in an answer; a function may raise one with a whole document in it."""

_FAILURES = {
    Reason.REWARD_ERROR: CallFailure.FUNCTION,
    Reason.REWARD_NOT_FINITE: CallFailure.NOT_FINITE,
    Reason.REWARD_TIMEOUT: CallFailure.LATE,
}


class Endpoint:
    """A reward function behind the contract. Used by one event loop.

    An async function runs in that loop; a plain one in processes, which are killed at the deadline.
    """

    def __init__(self, function: RewardFunction, *, max_concurrent: int = 64) -> None:
        """Start nothing yet.

        Args:
            function: plain or async.
            max_concurrent: evaluations at a time; more calls wait for their place.
        """
        self._scorer = Scorer(function)
        self._places = asyncio.Semaphore(max_concurrent)
        self._running: dict[str, asyncio.Task[bytes]] = {}
        self._answers: BoundedDict[str, bytes] = BoundedDict(REMEMBERED)

    async def __call__(self, body: bytes) -> bytes:
        """The answer to a message, whatever it is."""
        return await asyncio.shield(self.begin(body))

    async def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to a message that is no text any more; never an exception."""
        return decode(await self(encode(message)))

    def begin(self, body: bytes) -> "asyncio.Future[bytes]":
        """`__call__` without a task of its own. Others may wait for the same answer: what is
        returned is not for cancelling."""
        try:
            call = decode_call(body)
            return _ready(encode(WARM)) if call is None else self._begin(call)
        except ContractError as error:
            refusal = Answer(request_id_of(body), failure=CallFailure.REFUSED, error=str(error))
            return _ready(encode(refusal.as_json()))

    async def warm(self, count: int) -> None:
        """Start processes for `count` evaluations at a time, where the function runs in one."""
        await self._scorer.warm(count)

    async def close(self) -> None:
        """Give up what is being evaluated, and end the processes. May be called twice."""
        running = tuple(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._scorer.close()

    def _begin(self, call: RewardCall) -> "asyncio.Future[bytes]":
        known = self._answers.get(call.request_id)
        if known is not None:
            return _ready(known)
        task = self._running.get(call.request_id)
        if task is None:
            if (outcome := call.trajectory.outcome) not in TRAINABLE:
                raise ContractError(f"a trajectory that is {outcome} has no reward")
            task = asyncio.ensure_future(self._answered(call))
            self._running[call.request_id] = task
            task.add_done_callback(lambda _: self._running.pop(call.request_id))
        return task

    async def _answered(self, call: RewardCall) -> bytes:
        answer = await self._evaluate(call)
        body = encode(answer.as_json())
        if answer.failure is not CallFailure.LATE:
            self._answers.add(call.request_id, body)
        return body

    async def _evaluate(self, call: RewardCall) -> Answer:
        if not await self._place(call):
            late = f"its deadline, {call.deadline.isoformat()}, passed before it was evaluated"
            return Answer(call.request_id, failure=CallFailure.LATE, error=late)
        try:
            found = await self._scorer.verdict(call.trajectory, _left_s(call))
        finally:
            self._places.release()
        if found.reason is None:
            return Answer(call.request_id, found.reward, found.parts)
        error = (found.error or "")[:_ERROR_CHARACTERS]
        return Answer(call.request_id, failure=_FAILURES[found.reason], error=error)

    async def _place(self, call: RewardCall) -> bool:
        """Whether there was a place for a call before its deadline."""
        if (left_s := _left_s(call)) <= 0:
            return False
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with asyncio.timeout(left_s):
                return await self._places.acquire()
        except TimeoutError:
            return False


def load_function(name: str) -> RewardFunction:
    """The reward function that `module:function` names.

    Raises:
        SettingsError: there is none of that name.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise SettingsError(f"{name!r} is not module:function, such as my_rewards:exact_match")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the user's module ends here: its error is told
        raise SettingsError(f"module {module} cannot be imported: {error_line(error)}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SettingsError(f"module {module} has no function {attribute!r}")
    return cast(RewardFunction, found)


def _ready(body: bytes) -> "asyncio.Future[bytes]":
    ready: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    ready.set_result(body)
    return ready


def _left_s(call: RewardCall) -> float:
    return (call.deadline - datetime.now(UTC)).total_seconds()

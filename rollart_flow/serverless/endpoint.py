"""The answering side of a call: a reward function with bytes in and bytes out.

Invariant: a request id has at most one evaluation at a time, and only one in total while its answer
is cached; repeated calls, concurrent or later, get the same answer.
"""

import asyncio
import importlib
from collections.abc import Collection
from typing import Any, cast

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.errors import ContractError, SettingsError
from rollart_flow.isolation.child import error_line
from rollart_flow.rewards.base import RewardFunction
from rollart_flow.rewards.score import Scorer
from rollart_flow.serverless import contract
from rollart_flow.serverless.contract import Answer, CallFailure, RewardCall
from rollart_flow.timeouts import timeout_at
from rollart_flow.types import TRAINABLE, Reason

REMEMBERED = 4096
"""Number of cached answers for repeated calls; each takes about a hundred bytes."""

_LONGEST_S = 3600.0
"""Longest wait for a slot, and longest evaluation, however long the limit of a call is [s]."""

_FAILURES = {
    Reason.REWARD_ERROR: CallFailure.FUNCTION,
    Reason.REWARD_NOT_FINITE: CallFailure.NOT_FINITE,
    Reason.REWARD_TIMEOUT: CallFailure.LATE,
}


class Endpoint:
    """A reward function that answers messages of the contract. Used by one event loop.

    An async function runs in that loop; a plain function runs in processes, which are killed at the
    limit of the call.
    """

    def __init__(
        self, function: RewardFunction, *, max_concurrent: int = 64, environ: Collection[str] = ()
    ) -> None:
        """Start nothing yet; evaluations beyond `max_concurrent` wait.

        Processes get the environment variables of the names in `environ`.
        """
        self._scorer = Scorer(function, environ=environ)
        self._places = asyncio.Semaphore(max_concurrent)
        self._running: dict[str, asyncio.Task[bytes]] = {}
        self._answers: BoundedDict[str, bytes] = BoundedDict(REMEMBERED)

    async def __call__(self, body: bytes) -> bytes:
        return await asyncio.shield(self.begin(body))

    async def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to an already parsed message; never raises."""
        return contract.decode(await self(contract.encode(message)))

    def begin(self, body: bytes) -> "asyncio.Future[bytes]":
        """Begin to answer a message, without a separate task for the call.

        Other callers may wait for the same answer, so the returned future must not be cancelled.
        """
        try:
            call = contract.decode_call(body)
            return _ready(contract.encode(contract.WARM)) if call is None else self._begin(call)
        except ContractError as error:
            refusal = Answer(
                contract.request_id_of(body), failure=CallFailure.REFUSED, error=str(error)
            )
            return _ready(contract.encode(refusal.as_json()))

    async def warm(self, count: int) -> None:
        """Start processes for `count` concurrent evaluations if the function runs in processes."""
        await self._scorer.warm(count)

    async def close(self) -> None:
        """Cancel running evaluations and end the processes. May be called twice."""
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
        body = contract.encode(answer.as_json())
        if answer.failure is not CallFailure.LATE:
            self._answers.add(call.request_id, body)
        return body

    async def _evaluate(self, call: RewardCall) -> Answer:
        loop = asyncio.get_running_loop()
        until = loop.time() + min(call.limit_s, _LONGEST_S)
        if not await self._place(until):
            late = f"its time limit of {call.limit_s:g} s passed before it was evaluated"
            return Answer(call.request_id, failure=CallFailure.LATE, error=late)
        try:
            found = await self._scorer.verdict(call.trajectory, until - loop.time())
        finally:
            self._places.release()
        if found.reason is None:
            return Answer(call.request_id, found.reward, found.parts, found.verdicts)
        return Answer(call.request_id, failure=_FAILURES[found.reason], error=found.error)

    async def _place(self, until: float) -> bool:
        """Wait for an evaluation slot until a time of the loop; return whether one was free."""
        if until <= asyncio.get_running_loop().time():
            return False
        if not self._places.locked():
            return await self._places.acquire()
        try:
            async with timeout_at(until):
                return await self._places.acquire()
        except TimeoutError:
            return False


def load_function(name: str) -> RewardFunction:
    """Load the reward function `module:function`; SettingsError if no function has that name."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise SettingsError(f"{name!r} is not module:function, such as my_rewards:exact_match")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the error of the user's module is reported
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

"""`ServerlessReward`: a reward function that runs elsewhere, called like a local one (ROLLART 5.1).

Invariant: a call ends with a score or with one of the errors of its docstring, by its deadline; and
no address that it tells anybody holds a user, a password or a query.
"""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random

from rollart_flow.errors import (
    ContractError,
    RewardFailedError,
    RewardNotFiniteError,
    RewardTimeoutError,
    RollartError,
    ServerlessError,
)
from rollart_flow.rewards.base import Score
from rollart_flow.serverless.caller import Caller
from rollart_flow.serverless.contract import Answer, CallFailure, decode, encode_call
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports import check_url, open_transport, public_address
from rollart_flow.types import Trajectory

_DEFAULT = CallPolicy()


class ServerlessReward:
    """The reward function behind an address; give it to `reward(up, ...)`.

    It reaches for nothing before it is used, and a pickled one arrives unused. Used by one event
    loop until it is closed.
    """

    def __init__(self, url: str, policy: CallPolicy = _DEFAULT) -> None:
        """Check the address.

        Args:
            url: `http(s)://...`, `fc://...`, `lambda://name?region=...`, `serve://app` or
                `local://module:function?processes=N`.
            policy: how it is called.

        Raises:
            SettingsError: no transport takes such an address.
        """
        check_url(url)
        self.policy = policy
        self.__name__ = public_address(url)
        self._url = url
        self._caller: Caller | None = None
        self._places = asyncio.Semaphore(policy.max_concurrent)

    def __reduce__(self) -> tuple[type["ServerlessReward"], tuple[str, CallPolicy]]:
        return type(self), (self._url, self.policy)

    def __str__(self) -> str:
        return self.__name__

    async def __call__(self, trajectory: Trajectory) -> Score:
        """The trajectory's reward and its named parts.

        Raises:
            RewardTimeoutError: there is no answer by the deadline of the policy.
            RewardFailedError: the function raised, or gave no score.
            RewardNotFiniteError: it gave a number that is NaN or infinite.
            ServerlessError: the endpoint refuses, or every attempt came to nothing.
            SettingsError: the rest of the address cannot be used.
            MissingExtraError: the library that it takes is not installed.
        """
        async with self._places:
            return await self._scored(trajectory)

    async def warm(self, count: int) -> None:
        """Have the endpoint ready for `count` calls at a time; what fails is left to the calls."""
        with suppress(RollartError):
            await self._open().transport.warm(min(count, self.policy.max_concurrent))

    async def close(self) -> None:
        """Give up connections, threads and processes. May be called twice, and used again after."""
        caller, self._caller = self._caller, None
        self._places = asyncio.Semaphore(self.policy.max_concurrent)  # the next loop may be another
        if caller is not None:
            await caller.transport.close()

    def _open(self) -> Caller:
        if self._caller is None:
            self._caller = Caller(open_transport(self._url, self.policy), self.policy, Random())
        return self._caller

    async def _scored(self, trajectory: Trajectory) -> Score:
        deadline = datetime.now(UTC) + timedelta(seconds=self.policy.deadline_s)
        request_id, call = encode_call(trajectory, deadline)
        body = await self._open().call(call)
        answer = Answer.from_json(decode(body))
        if answer.request_id != request_id and answer.failure is not CallFailure.REFUSED:
            raise ContractError(f"an answer is to call {answer.request_id}, not {request_id}")
        return _score(answer)


def _score(answer: Answer) -> Score:
    """The score of an answer, or its failure as an error."""
    if answer.reward is not None:
        return answer.reward if answer.parts is None else (answer.reward, answer.parts)
    said = answer.error or f"the endpoint answered {answer.failure} without an error"
    match answer.failure:
        case CallFailure.LATE:
            raise RewardTimeoutError(said)
        case CallFailure.NOT_FINITE:
            raise RewardNotFiniteError(said)
        case CallFailure.REFUSED:
            raise ServerlessError(f"the endpoint refuses the call: {said}")
        case _:
            raise RewardFailedError(said)

"""`ServerlessReward`: a remote reward function, called like a local one (ROLLART section 5.1).

Invariant: a call ends by its deadline with a score or one of the documented errors, and no address
that it reports contains a user, a password or a query.
"""

import asyncio
from contextlib import suppress
from random import Random

from rollart_flow.errors import (
    ContractError,
    RewardFailedError,
    RewardNotFiniteError,
    RewardTimeoutError,
    RollartError,
    ServerlessError,
)
from rollart_flow.rewards.base import CheckedScore, Score
from rollart_flow.serverless.caller import Caller
from rollart_flow.serverless.contract import Answer, CallFailure, decode, encode_call
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports import check_url, open_transport, public_address
from rollart_flow.types import Trajectory

_DEFAULT = CallPolicy()


class ServerlessReward:
    """A reward function behind an address; pass it to `reward(up, ...)`.

    An instance opens no connection before its first use, and an unpickled instance is unused. One
    event loop uses it until it is closed.
    """

    def __init__(self, url: str, policy: CallPolicy = _DEFAULT) -> None:
        """Check the address.

        Args:
            url: `http(s)://...`, `fc://...`, `lambda://name?region=...`, `serve://app` or
                `local://module:function?processes=N`.

        Raises:
            SettingsError: no transport supports such an address.
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
        """Return the trajectory's reward and its named parts.

        Raises:
            RewardTimeoutError: no answer arrived by the deadline of the policy.
            RewardFailedError: the function raised or returned no score.
            RewardNotFiniteError: the function returned a number that is NaN or infinite.
            ServerlessError: the endpoint refused the call, or every attempt failed.
            SettingsError: the remainder of the address is invalid.
            MissingExtraError: the library of the transport is not installed.
        """
        async with self._places:
            return await self._scored(trajectory)

    async def warm(self, count: int) -> None:
        """Prepare the endpoint for `count` concurrent calls; errors are left to the calls."""
        with suppress(RollartError):
            await self._open().transport.warm(min(count, self.policy.max_concurrent))

    async def close(self) -> None:
        """Release all resources. May be called twice; the instance can be used again."""
        caller, self._caller = self._caller, None
        self._places = asyncio.Semaphore(self.policy.max_concurrent)  # for another event loop
        if caller is not None:
            await caller.transport.close()

    def _open(self) -> Caller:
        if self._caller is None:
            self._caller = Caller(open_transport(self._url, self.policy), self.policy, Random())
        return self._caller

    async def _scored(self, trajectory: Trajectory) -> Score:
        request_id, call = encode_call(trajectory, self.policy.deadline_s)
        body = await self._open().call(call)
        answer = Answer.from_json(decode(body))
        if answer.request_id != request_id and answer.failure is not CallFailure.REFUSED:
            raise ContractError(f"an answer is to call {answer.request_id}, not {request_id}")
        return _score(answer)


def _score(answer: Answer) -> Score:
    if answer.reward is not None:
        parts = None if answer.parts is None else dict(answer.parts)
        return CheckedScore(answer.reward, parts, answer.verdicts).value
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

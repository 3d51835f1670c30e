"""Carries out a `CallPolicy`: attempts with pauses, hedges and the breaker.

Pure asyncio over a `Transport`: time is the loop's, chance is injected, so that every case is
tested under virtual time.

Invariant: a call ends by its deadline, and nothing that it has sent outlives it here.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from rollart_flow.errors import EndpointTroubleError, RewardTimeoutError
from rollart_flow.serverless.breaker import EndpointBreaker
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport


@dataclass(slots=True)
class Caller:
    """Calls one endpoint for one process."""

    transport: Transport
    policy: CallPolicy
    chance: Random
    """Draws the pauses."""
    _breaker: EndpointBreaker = field(init=False)

    def __post_init__(self) -> None:
        self._breaker = EndpointBreaker(self.policy.breaker_failures, self.policy.breaker_reset_s)

    async def call(self, body: bytes) -> bytes:
        """The endpoint's answer to a message, whatever number of attempts it takes.

        A broken endpoint is waited for.

        Raises:
            RewardTimeoutError: the deadline of the policy passed; tells the last trouble.
            EndpointTroubleError: every attempt came to nothing.
            ServerlessError: the endpoint refuses.
        """
        troubles: list[EndpointTroubleError] = []
        try:
            async with asyncio.timeout(self.policy.deadline_s) as limit:
                return await self._attempts(body, troubles)
        except TimeoutError as error:
            if not limit.expired():
                raise
            last = f"; the last attempt: {troubles[-1]}" if troubles else ""
            raise RewardTimeoutError(
                f"no answer within {self.policy.deadline_s:g} s{last}"
            ) from error

    async def _attempts(self, body: bytes, troubles: list[EndpointTroubleError]) -> bytes:
        """Attempts until one is answered; adds what the others came to."""
        for attempt in count(1):
            try:
                async with self._breaker.attempt():
                    return await self._hedged(body)
            except EndpointTroubleError as error:
                troubles.append(error)
                if attempt == self.policy.attempts:
                    raise EndpointTroubleError(f"{error} ({attempt} attempts)") from error
                await asyncio.sleep(error.retry_after_s + self._pause_s(attempt))
        raise AssertionError("the attempts are endless")

    def _pause_s(self, attempt: int) -> float:
        """Seconds between an attempt (the first is 1) and the next: full jitter."""
        longest = self.policy.backoff_s * 2.0 ** min(attempt - 1, 64)
        return self.chance.uniform(0.0, min(longest, self.policy.backoff_cap_s))

    async def _hedged(self, body: bytes) -> bytes:
        """One attempt: a request, and a second one if the first takes long."""
        limit_s = self.policy.attempt_timeout_s or self.policy.deadline_s
        patience_s = self.policy.hedge_after_s
        if patience_s is None or patience_s >= limit_s:
            return await self.transport.send(body, limit_s)
        first = self._send(body, limit_s)
        requests = [first]
        try:
            await asyncio.wait(requests, timeout=patience_s)
            if first.done():
                return first.result()
            requests.append(self._send(body, limit_s - patience_s))
            return await _first_answer(requests)
        finally:
            await _give_up([request for request in requests if not request.done()])

    def _send(self, body: bytes, timeout_s: float) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self.transport.send(body, timeout_s))


async def _give_up(requests: Sequence[asyncio.Task[bytes]]) -> None:
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)


async def _first_answer(requests: Iterable[asyncio.Task[bytes]]) -> bytes:
    """The first answer; where all requests come to nothing, what the last of them said."""
    trouble = EndpointTroubleError("nothing was sent")
    for request in asyncio.as_completed(requests):
        try:
            return await request
        except EndpointTroubleError as error:
            trouble = error
    raise trouble

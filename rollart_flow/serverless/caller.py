"""Execution of a `CallPolicy`: attempts with pauses, hedging and the circuit breaker.

The code is pure asyncio over a `Transport`: time comes from the event loop and randomness is
injected, so that every case can be tested under virtual time.

Invariants: a call ends by its deadline, and none of its local requests outlives it. While the
breaker is open, no attempt is sent to the endpoint; when its time is over, a single attempt is
sent. Other attempts wait, and no attempt fails because of the breaker.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random

from rollart_flow.errors import EndpointTroubleError, RewardTimeoutError, ServerlessError
from rollart_flow.retries import pause_s
from rollart_flow.serverless.policy import CallPolicy
from rollart_flow.serverless.transports.base import Transport
from rollart_flow.text import counted
from rollart_flow.timeouts import timeout, timeout_at


@dataclass(slots=True)
class EndpointBreaker:
    """A circuit breaker that opens for `reset_s` seconds after `failures` consecutive failures."""

    failures: int
    reset_s: float
    _failed: int = 0
    _open_until: float | None = None
    """Event loop time until which the breaker is open; None if it is closed."""
    _probing: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def open(self) -> bool:
        return self._open_until is not None

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """Wait until an attempt may be made, then record its result.

        EndpointTroubleError counts as a failure. A refusal does not, since the endpoint is
        reachable. An attempt that is cancelled or ends in any other way is not counted.
        """
        probe = await self._admit()
        try:
            yield
        except EndpointTroubleError:
            self._fail(probe)
            raise
        except ServerlessError:
            self._succeed()
            raise
        except BaseException:
            self._probing = self._probing and not probe
            self._announce()
            raise
        self._succeed()

    async def _admit(self) -> bool:
        """Wait for admission; return whether the attempt is the trial of a broken endpoint."""
        loop = asyncio.get_running_loop()
        while self._open_until is not None:
            if not self._probing and loop.time() >= self._open_until:
                self._probing = True
                return True
            until = None if self._probing else self._open_until
            try:
                async with timeout_at(until) as limit:
                    await self._changed.wait()
            except TimeoutError:
                if not limit.expired():
                    raise
        return False

    def _succeed(self) -> None:
        if self._failed or self._probing or self._open_until is not None:
            self._failed, self._probing, self._open_until = 0, False, None
            self._announce()

    def _fail(self, probe: bool) -> None:
        self._failed += 1
        if probe or (not self.open and self._failed >= self.failures):
            self._probing = False
            self._open_until = asyncio.get_running_loop().time() + self.reset_s
            self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@dataclass(slots=True)
class Caller:
    """A caller of one endpoint for one process."""

    transport: Transport
    policy: CallPolicy
    chance: Random
    """Random source of the pauses."""
    _breaker: EndpointBreaker = field(init=False)

    def __post_init__(self) -> None:
        self._breaker = EndpointBreaker(self.policy.breaker_failures, self.policy.breaker_reset_s)

    async def call(self, body: bytes) -> bytes:
        """Return the endpoint's answer to a message, with as many attempts as needed.

        A call to a broken endpoint waits until it may be tried again.

        Raises:
            RewardTimeoutError: the deadline of the policy passed; the message has the last error.
            EndpointTroubleError: every attempt failed.
            ServerlessError: the endpoint refused the call.
        """
        troubles: list[EndpointTroubleError] = []
        try:
            async with timeout(self.policy.deadline_s) as limit:
                return await self._attempts(body, troubles)
        except TimeoutError as error:
            if not limit.expired():
                raise
            last = f"; the last attempt: {troubles[-1]}" if troubles else ""
            raise RewardTimeoutError(
                f"no answer within {self.policy.deadline_s:g} s{last}"
            ) from error

    async def _attempts(self, body: bytes, troubles: list[EndpointTroubleError]) -> bytes:
        """Make attempts until one is answered; append the errors of the others to `troubles`."""
        for attempt in count(1):
            try:
                async with self._breaker.attempt():
                    return await self._hedged(body)
            except EndpointTroubleError as error:
                troubles.append(error)
                if attempt == self.policy.attempts:
                    raise EndpointTroubleError(
                        f"{error} ({counted(attempt, 'attempt')})"
                    ) from error
                policy = self.policy
                pause = pause_s(attempt, policy.backoff_s, policy.backoff_cap_s, self.chance)
                await asyncio.sleep(error.retry_after_s + pause)
        raise AssertionError("the attempts are endless")

    async def _hedged(self, body: bytes) -> bytes:
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
            left = [request for request in requests if not request.done()]
            for request in left:
                request.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _send(self, body: bytes, timeout_s: float) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self.transport.send(body, timeout_s))


async def _first_answer(requests: Iterable[asyncio.Task[bytes]]) -> bytes:
    """Return the first answer; if all requests fail, raise the error of the last one."""
    trouble = EndpointTroubleError("nothing was sent")
    for request in asyncio.as_completed(requests):
        try:
            return await request
        except EndpointTroubleError as error:
            trouble = error
    raise trouble

"""The circuit breaker of one endpoint: a broken endpoint gets no calls for a while, then one trial
call.

Invariant: while the breaker is open, no attempt is sent to the endpoint; when its time is over, a
single attempt is sent. Other attempts wait, and no attempt fails because of the breaker.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rollart_flow.errors import EndpointTroubleError, ServerlessError


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
        """Whether the endpoint is considered broken."""
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
        """Wait for admission and return whether the admitted attempt is the trial of a broken
        endpoint.
        """
        loop = asyncio.get_running_loop()
        while self._open_until is not None:
            if not self._probing and loop.time() >= self._open_until:
                self._probing = True
                return True
            until = None if self._probing else self._open_until
            try:
                async with asyncio.timeout_at(until) as limit:
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

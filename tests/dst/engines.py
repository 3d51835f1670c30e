"""Inference workers that die, hang, refuse requests, and lose or repeat chunks.

The invariant: the monitor knows every token before a client receives it, and each token has a
logprob that no other token has.
"""

import asyncio
from collections.abc import AsyncIterator
from random import Random

from rollart_flow.control.loop.waits import Signal, waiting
from rollart_flow.errors import EngineError, RequestRefusedError, WorkerLeftError
from rollart_flow.types import Chunk, FinishReason, GenerationRequest
from tests.dst.log import Log
from tests.dst.monitor import Monitor, SampledTokens
from tests.dst.plans import STOP, Faults

HARDWARE = "H20"
_TOKEN_S = 0.05
_LONGEST = 6
"""Most tokens of an action, unless a limit cuts it."""


class FaultyEngine:
    """One inference worker: samples letters at random times, obeys suspend, update and resume.

    Args:
        worker: name of the worker.
        version: policy version that the worker serves from the start.
        chance: source of all randomness.
    """

    hardware = HARDWARE
    stands_for = frozenset((HARDWARE,))

    def __init__(
        self, worker: str, version: int, chance: Random, faults: Faults, monitor: Monitor, log: Log
    ) -> None:
        self.worker = worker
        self.version = version
        self.serves = True
        self.suspended = False
        self.gone = False
        """Whether the worker is dead for good."""
        self._chance = chance
        self._faults = faults
        self._monitor = monitor
        self._log = log
        self.incarnation = 0
        """Number of earlier processes, and of departures for training."""
        self.ahead: int | None = None
        """Version that the process has read and does not serve yet."""
        self.left = -1
        """Incarnation that ended when the worker left for training."""
        self._dead = False
        self._hangs = False
        self._changed = Signal()
        self._aborted: set[str] = set()
        self._seen: set[str] = set()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return not self._dead

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        incarnation = self.incarnation
        sampled = await self._accept(request)
        chance, faults = self._chance, self._faults
        length = min(request.sampling.max_tokens, chance.randint(1, _LONGEST))
        offset = 0
        while offset < length:
            count = min(chance.randint(1, 3), length - offset)
            await asyncio.sleep(count * chance.expovariate(1 / _TOKEN_S))
            await self._allowed(request.request_id, incarnation)
            if request.request_id in self._aborted:
                yield Chunk(request.request_id, offset, (), (), (), FinishReason.ABORT)
                return
            chunk = self._sample(request, offset, count, length)
            offset += count
            if chance.random() < faults.chunk_lost:
                sampled.broken = True
            self._monitor.sampled(self, sampled, chunk)
            if sampled.broken:
                continue  # a client takes nothing after a gap
            yield chunk
            if chance.random() < faults.chunk_repeated:
                yield chunk
            if chance.random() < faults.stream_breaks:
                return

    async def _accept(self, request: GenerationRequest) -> SampledTokens:
        """Accept a request, refuse it, or never answer it."""
        if self._dead:
            raise EngineError(f"{self.worker} is dead")
        if not self.serves:
            raise WorkerLeftError(f"{self.worker} serves nothing")
        if request.request_id in self._seen:
            self._monitor.violated("token fidelity", f"{request.request_id} was requested twice")
        self._seen.add(request.request_id)
        draw = self._chance.random()
        if draw < self._faults.engine_refuses:
            self._log.write("fault", self.worker, detail=f"refuses {request.request_id}")
            raise RequestRefusedError(f"{self.worker} refuses {request.request_id}")
        if draw < self._faults.engine_refuses + self._faults.engine_hangs:
            self._log.write("fault", self.worker, detail=f"hangs on {request.request_id}")
            await asyncio.Event().wait()
        return self._monitor.tokens_of(request)

    async def _allowed(self, request_id: str, incarnation: int) -> None:
        while (self.suspended or self._hangs) and incarnation == self.incarnation:
            with waiting(f"resume({self.worker}) of {request_id}"):
                await self._changed.wait()
        if self._dead or incarnation not in (self.incarnation, self.left):
            raise EngineError(f"{self.worker} died")
        if incarnation == self.left:
            raise WorkerLeftError(f"{self.worker} has left")

    def _sample(self, request: GenerationRequest, offset: int, count: int, length: int) -> Chunk:
        full = length == request.sampling.max_tokens
        tokens = [self._chance.randint(97, 122) for _ in range(count)]
        reason = None
        if offset + count == length:
            reason = FinishReason.LENGTH if full else FinishReason.STOP
            tokens[-1] = tokens[-1] if full else STOP
        return Chunk(
            request_id=request.request_id,
            offset=offset,
            token_ids=tuple(tokens),
            logprobs=tuple(self._monitor.fresh_logprob() for _ in tokens),
            versions=(self.version,) * count,
            finish_reason=reason,
        )

    async def abort(self, request_id: str) -> None:
        self._aborted.add(request_id)

    def suspend(self) -> None:
        """Sample nothing until `serve`."""
        self.suspended = True

    def load(self, version: int) -> None:
        """Swap the weights to a version."""
        self._monitor.loading(self, version)
        self.version, self.ahead = version, None

    def serve(self) -> bool:
        """Sample tokens; whether this process begins to with this call."""
        begins = not self.serves
        self.serves, self.suspended = True, False
        self._changed.notify()
        return begins

    def leave(self) -> None:
        """Serve no request until `serve`; requests in flight end."""
        if self.serves:
            self.serves, self.left = False, self.incarnation
            self.incarnation += 1
            self._changed.notify()

    def hang(self) -> None:
        """Hang: the process answers nothing until it is restarted."""
        self._hangs = True

    def die(self, *, for_good: bool) -> None:
        """End the process; it loses its state."""
        self._dead, self.gone, self._hangs, self.ahead = True, for_good, False, None
        self.incarnation += 1
        self._changed.notify()

    def restart(self) -> None:
        """Start a new process with the initial weights; it serves no request until `serve`."""
        if not self._dead or self.gone:
            return
        self._dead, self.serves, self.suspended, self.version = False, False, False, 0
        self._seen.clear()
        self._changed.notify()

    async def reachable(self) -> bool:
        """Wait for the restart of a dead worker; False if it will never come back."""
        while (self._dead or self._hangs) and not self.gone:
            with waiting(f"the restart of {self.worker}"):
                await self._changed.wait()
        return not self._dead

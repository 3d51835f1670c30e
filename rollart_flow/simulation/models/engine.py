"""A simulated inference worker: the protocol `Inference` over a `ContinuousBatch`.

The invariant: at any moment at most one timer is set, for the next event in the batch, so that the
event loop sees a few events per generation, independent of its length.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from rollart_flow.control.loop.bounded_dict import BoundedDict
from rollart_flow.errors import WorkerLeftError
from rollart_flow.simulation.hardware import EngineModel
from rollart_flow.simulation.models.batching import ContinuousBatch
from rollart_flow.simulation.models.decoding import Job
from rollart_flow.simulation.workloads import shared
from rollart_flow.types import Chunk, FinishReason, GenerationRequest

Left = Callable[[str, int], int]
"""(trajectory id, position in its chain) -> tokens that the action still has to generate."""


class SimulatedEngine:
    """One inference worker, where `left` gives the lengths of actions.

    It counts in `lost`, by trajectory, the tokens of actions that did not end. Prompts of a domain
    can use the share in `cached_shares` of their cached tokens, or all. With `first_chunks`, the
    first token of every request has its own chunk, which a profiler needs; else only the first
    token of each trajectory has.
    """

    def __init__(
        self,
        worker: str,
        batch: ContinuousBatch,
        left: Left,
        lost: Counter[str],
        *,
        cached_shares: Mapping[str, float] = MappingProxyType({}),
        first_chunks: bool = False,
    ) -> None:
        self.worker = worker
        self.batch = batch
        self.hardware = batch.model.hardware
        self.stands_for = frozenset((self.hardware,))
        self.devices = batch.model.devices
        self._left = left
        self._lost = lost
        self._cached_shares = cached_shares
        self._first_chunks = first_chunks
        self._first: dict[Job, asyncio.Future[None]] = {}
        self._done: dict[Job, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.suspended_at: float | None = None
        self.suspended_s = 0.0
        self.away_at: float | None = None
        self.away_s = 0.0

    async def generate(
        self, request: GenerationRequest, *, prefilled: bool = False
    ) -> AsyncIterator[Chunk]:
        """Generate an action: one chunk for the first token, and one for each version at the end.

        A prompt that is `prefilled` has its KV cache from another worker.
        """
        position = sum(request.prompt_ids)
        left = self._left(request.trajectory_id, position)
        job = self._job(request, position, left, prefilled=prefilled)
        sent = 0
        offset = 0
        if (request_s := self.batch.model.request_s(request.prompt_ids[-1])) > 0:
            await asyncio.sleep(request_s * self.batch.slowdown)
        try:
            done = self._submit(job)
            if self._first_chunks or len(request.prompt_ids) == 1:
                self._first[job] = asyncio.get_running_loop().create_future()
                await self._first[job]
                if job.spans:
                    yield _chunk(request, 0, 1, job.spans[0][0], None)
                    sent = offset = 1
            await done
            spans = _without(job.spans, sent)
            for index, (version, tokens) in enumerate(spans):
                last = index == len(spans) - 1 and job.left == 0
                reason = FinishReason.STOP if last else None
                yield _chunk(request, offset + index, tokens, version, reason)
            if not spans and job.left == 0:
                yield _chunk(request, offset, 0, self.batch.version, FinishReason.STOP)
            if job.left:
                raise WorkerLeftError(f"{self.worker} has left")
        finally:
            self._give_up(job)
            if job.left:
                self._lost[request.trajectory_id] += sum(tokens for _, tokens in job.spans)

    async def run(self, key: str, context: int, left: int) -> Job:
        """Sample `left` tokens after `context` tokens, apart from any request."""
        return await self._ended(Job(key, context, left))

    async def prefill(self, request: GenerationRequest) -> None:
        """Compute the prompt of a request, whose tokens another worker samples."""
        await self._ended(self._job(request, sum(request.prompt_ids), 0))

    async def _ended(self, job: Job) -> Job:
        try:
            await self._submit(job)
        finally:
            self._give_up(job)
        return job

    def _job(
        self, request: GenerationRequest, context: int, left: int, *, prefilled: bool = False
    ) -> Job:
        share = self._cached_shares.get(request.domain, 1.0)
        return Job(request.trajectory_id, context, left, prefilled, share)

    async def abort(self, request_id: str) -> None:
        """Do nothing: closing the stream of a request ends it."""

    def _give_up(self, job: Job) -> None:
        """Remove a job whose caller has stopped to wait, unless the job is done."""
        self._first.pop(job, None)
        if self._done.pop(job, None) is not None and not job.done:
            self._happened(self.batch.remove(self._now(), job))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _submit(self, job: Job) -> "asyncio.Future[None]":
        if self.away_at is not None:
            raise WorkerLeftError(f"{self.worker} has left")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._done[job] = done
        self._happened(self.batch.submit(self._now(), job))
        return done

    def _happened(self, changed: Iterable[Job]) -> None:
        """Wake the waiters of changed jobs, and set the timer for the next event."""
        for job in changed:
            _end(self._first.pop(job, None))
            if job.done:
                _end(self._done.pop(job, None))
        event = self.batch.next_event()
        if self._timer is not None:
            if self._timer.when() == event:
                return
            self._timer.cancel()
            self._timer = None
        if event is not None:
            self._timer = asyncio.get_running_loop().call_at(event, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._happened(self.batch.advance(self._now()))

    def settle(self) -> None:
        now = self._now()
        self._happened(self.batch.advance(now))
        if self.suspended_at is not None:
            self.suspended_s += now - self.suspended_at
            self.suspended_at = now
        if self.away_at is not None:
            self.away_s += now - self.away_at
            self.away_at = now

    def pace(self, slowdown: float) -> None:
        self._happened(self.batch.pace(self._now(), slowdown))

    def suspend(self) -> None:
        """Sample nothing until `resume`."""
        if not self.batch.suspended:
            self.suspended_at = self._now()
            self._happened(self.batch.suspend(self._now()))

    def resume(self, version: int) -> None:
        """Continue the jobs in flight under a version."""
        if self.suspended_at is not None:
            self.suspended_s += self._now() - self.suspended_at
            self.suspended_at = None
            self.batch.resume(self._now(), version)
            self._happened(())

    def leave(self) -> None:
        """Stop serving: jobs in flight end with the tokens that they have."""
        self.away_at = self._now()
        self._happened(self.batch.advance(self._now()))
        for job, done in list(self._done.items()):
            self.batch.remove(self._now(), job)
            _end(self._first.pop(job, None))
            _end(done)
        self._done.clear()
        self._happened(())

    def come_back(self, version: int) -> None:
        """Serve again, with a version and empty caches."""
        if self.away_at is not None:
            self.away_s += self._now() - self.away_at
            self.away_at = None
        self.batch.suspend(self._now())
        self.batch.resume(self._now(), version)
        self._happened(())


class MakeEngine(Protocol):
    """A factory of inference workers; `stored`: their prefixes lie in a store beside them."""

    def __call__(self, name: str, model: EngineModel, *, stored: bool) -> SimulatedEngine: ...


def _end(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _without(spans: list[tuple[int, int]], sent: int) -> list[tuple[int, int]]:
    """The spans without their first `sent` tokens."""
    left: list[tuple[int, int]] = []
    for version, tokens in spans:
        taken = min(sent, tokens)
        sent -= taken
        if tokens > taken:
            left.append((version, tokens - taken))
    return left


def _chunk(
    request: GenerationRequest, offset: int, tokens: int, version: int, reason: FinishReason | None
) -> Chunk:
    """A chunk with one id that stands for `tokens` tokens, or without an id if there are none."""
    ids, logprobs, versions = ((shared(tokens),), (0.0,), (version,)) if tokens else ((), (), ())
    return Chunk(request.request_id, offset, ids, logprobs, versions, reason)


_REMEMBERED = 65_536
"""Trajectories whose pair is remembered."""


class DisaggregatedEngine:
    """Prefill and decode on separate workers behind one interface (ROLLART section 6.3).

    Prefixes lie in a store in host memory (Mooncake), from which a prefill worker loads them layer
    by layer beside its arithmetic; KV caches of new tokens, `kv_bytes` each, go to the decode
    worker over the network. The invariant: every token is sampled by a decode worker that has the
    KV cache of all tokens before it; a trajectory keeps its pair of workers.
    """

    def __init__(
        self,
        prefill: Sequence[SimulatedEngine],
        decode: Sequence[SimulatedEngine],
        link_gb_s: float,
        kv_bytes: float,
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._token_s = kv_bytes / (link_gb_s * 1e9)
        self._requests: Counter[str] = Counter()
        self.worker = f"{len(prefill)}P{len(decode)}D"
        self.hardware, self.stands_for = decode[0].hardware, decode[0].stands_for
        self._pairs: BoundedDict[str, tuple[SimulatedEngine, SimulatedEngine, int]] = BoundedDict(
            _REMEMBERED
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        position = sum(request.prompt_ids)
        pair = self._pairs.get(request.trajectory_id)
        prefill, decode, shipped = pair or (
            self._least(self._prefill),
            self._least(self._decode),
            0,
        )
        self._requests.update((prefill.worker, decode.worker))
        try:
            await prefill.prefill(request)
            fresh = position - min(shipped, position)
            await asyncio.sleep(fresh * self._token_s)
            self._pairs.add(request.trajectory_id, (prefill, decode, position))
            async for chunk in decode.generate(request, prefilled=True):
                yield chunk
        finally:
            self._requests.subtract((prefill.worker, decode.worker))

    def _least(self, engines: Sequence[SimulatedEngine]) -> SimulatedEngine:
        """Return the worker with the fewest requests, those on their way to it included."""
        return min(engines, key=lambda engine: self._requests[engine.worker])

    async def abort(self, request_id: str) -> None:
        """Do nothing: closing the stream of a request ends it."""

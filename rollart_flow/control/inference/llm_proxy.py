"""LLMProxy: client-side proxy of all inference workers (ROLLART section 6.1).

A request goes to a worker of the hardware class that its domain is bound to. All requests of a
trajectory go to the same worker, so that the prefix stays cached; a new trajectory goes to the
least loaded worker. If there are prefill workers, one of them computes the prompt first
(`prefill`). The invariant: the tokens of a generation are exactly the sampled tokens, each once and
in order, even if the generation is repeated, interrupted or continued on another worker.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

from rollart_flow.control.inference.generation_builder import (
    ChunkGapError,
    GenerationBuilder,
    GenerationFailedError,
    InvalidChunkError,
)
from rollart_flow.control.inference.generation_timer import GenerationTimer, GenerationTiming
from rollart_flow.control.inference.prefill import Prefill, Prefilled
from rollart_flow.control.inference.routing import FixedAffinity
from rollart_flow.control.inference.worker_pool import Recover, WorkerPool
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.protocols import Emit, Inference
from rollart_flow.errors import EngineError, RequestRefusedError, WorkerLeftError
from rollart_flow.text import one_line
from rollart_flow.types import (
    Chunk,
    Event,
    EventKind,
    FinishReason,
    Generation,
    GenerationRequest,
    Reason,
)

_FRUITLESS_LIMIT = 2
"""Consecutive interruptions without a new token after which a request fails, since the request
itself may crash its workers."""

FirstToken = Callable[[int], None]
"""Callback, called once per generation with the policy version of the first token."""


class _Live:
    """A generation in progress."""

    __slots__ = (
        "aborted", "fruitless", "joined", "on_first", "parts", "request", "task", "timing",
    )  # fmt: skip

    def __init__(
        self,
        request: GenerationRequest,
        on_first: FirstToken | None,
        timing: GenerationTiming | None,
        vocabulary: int | None,
    ) -> None:
        self.request = request
        self.on_first = on_first
        self.timing = timing
        self.joined = GenerationBuilder(request, vocabulary)
        self.task = asyncio.current_task()
        self.aborted = False
        self.parts = 0
        """Number of requests sent for the generation."""
        self.fruitless = 0

    def begin_part(self, worker: Inference, prefilled_by: str) -> None:
        """Record that the request, or its remaining part, goes to a worker."""
        self.parts += 1
        self.joined.begin_part(worker.hardware, worker.worker, prefilled_by)
        if self.timing is not None:
            self.timing.sent(worker.worker)

    def take(self, chunk: Chunk) -> None:
        """Append a chunk, and report the first token."""
        first = not len(self.joined)
        self.joined.add(chunk)
        if first and len(self.joined):
            if self.timing is not None:
                self.timing.first(chunk)
            if self.on_first is not None:
                self.on_first(self.joined.versions[0])


class LLMProxy:
    """Routes requests to suitable inference workers and joins their chunks.

    Args:
        workers: inference workers.
        emit: receives events for fallbacks, lost workers and retries.
        hw_affinity: hardware class by domain, "default" for the others; empty for any class. With
            a GenerationTimer, its profiler chooses the classes.
        recover: brings lost workers back; by default they stay lost until `add`.
        prefill: workers that compute prompts for the others; if empty, each computes its own.
        vocabulary: number of token ids; None if any id is valid.
    """

    def __init__(
        self,
        workers: Iterable[Inference],
        emit: Emit,
        *,
        hw_affinity: Mapping[str, str] | GenerationTimer | None = None,
        recover: Recover | None = None,
        prefill: Iterable[Inference] = (),
        vocabulary: int | None = None,
    ) -> None:
        self._emit = emit
        self._vocabulary = vocabulary
        self._timer = hw_affinity if isinstance(hw_affinity, GenerationTimer) else None
        given = {} if isinstance(hw_affinity, GenerationTimer) else hw_affinity or {}
        affinity = FixedAffinity(given) if self._timer is None else self._timer.profiler
        self._pool = WorkerPool(workers, emit, affinity, recover)
        self._router = self._pool.router
        self._prefill = Prefill(prefill, emit, recover)
        self._live: dict[str, _Live] = {}
        self._sessions = itertools.count()

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers in use."""
        return self._router.names

    def add(self, worker: Inference) -> None:
        """Add a worker, or take back a lost worker that has returned."""
        self._router.add(worker)

    def remove(self, name: str) -> None:
        """Stop sending requests to a worker; its requests in flight continue."""
        self._router.remove(name)

    def session(self) -> int:
        """Return a unique number for request ids, since an attempt may run twice at once."""
        return next(self._sessions)

    def release(self, trajectory_id: str) -> None:
        """Forget the placement of a trajectory that has ended."""
        self._router.release(trajectory_id)
        self._prefill.release(trajectory_id)
        if self._timer is not None:
            self._timer.release(trajectory_id)

    async def generate(
        self, request: GenerationRequest, on_first: FirstToken | None = None
    ) -> Generation:
        """Generate until a finish reason, continuing on another worker if one dies.

        The request id must be unique among the requests in progress of all clients.

        Raises:
            GenerationFailedError: no worker is left, or the request is refused, gets impossible
                tokens or fails repeatedly; the error carries the tokens so far.
        """
        if request.request_id in self._live:
            raise ValueError(f"request {request.request_id!r} is in progress already")
        timing = None if self._timer is None else self._timer.begin(request)
        live = _Live(request, on_first, timing, self._vocabulary)
        self._live[request.request_id] = live
        cancelling = live.task.cancelling() if live.task is not None else 0
        try:
            while live.joined.finish_reason is None:
                await self._attempt(live)
        except asyncio.CancelledError:
            if not live.aborted or live.task is None or live.task.uncancel() > cancelling:
                raise
            live.joined.finish_reason = FinishReason.ABORT
        finally:
            del self._live[request.request_id]
        generation = live.joined.generation()
        if self._timer is not None and live.timing is not None and live.parts == 1:
            self._timer.end(live.timing, request, generation)
        return generation

    def abort(self, request_id: str) -> None:
        """Abort a generation, which returns its tokens so far. Unknown ids are ignored."""
        live = self._live.get(request_id)
        if live is not None and live.task is not None and not live.aborted:
            live.aborted = True
            live.task.cancel()

    async def _attempt(self, live: _Live) -> None:
        """Stream from one worker until the generation ends or the worker fails."""
        worker = await self._route(live)
        length = len(live.joined)
        self._router.begin(worker)
        try:
            prefilled = await self._prefill.ahead(live.joined.rest(live.parts))
            live.begin_part(worker, prefilled.by)
            await self._take_all(live, worker, prefilled)
        except (RequestRefusedError, InvalidChunkError) as error:
            raise GenerationFailedError(str(error), live.joined.generation()) from error
        except EngineError as error:
            if len(live.joined) > length:
                live.fruitless = 0
            elif not isinstance(error, WorkerLeftError):
                live.fruitless += 1
            self._interrupted(live, worker, error)
        finally:
            self._router.end(worker)

    async def _route(self, live: _Live) -> Inference:
        """Return a generation's worker; wait while none is in use and one may return."""
        await self._pool.awaited(live.request.request_id)
        try:
            return self._router.route(live.request)
        except EngineError as error:
            raise GenerationFailedError(str(error), live.joined.generation()) from error

    async def _take_all(self, live: _Live, worker: Inference, prefilled: Prefilled) -> None:
        part, finished = prefilled.request, False
        stream = worker.generate(part)
        try:
            with waiting(f"generate({part.request_id} on {worker.worker})"):
                async for chunk in stream:
                    live.take(chunk)
                    if chunk.finish_reason is not None:
                        finished = True
                        return
            raise EngineError(f"worker {worker.worker} ended {part.request_id} without a reason")
        finally:
            if not finished:
                self._pool.abort(worker, part.request_id)
                self._prefill.give_up(prefilled)
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _interrupted(self, live: _Live, worker: Inference, error: Exception) -> None:
        """Mark a worker as lost, and decide whether the request continues on another one."""
        if not isinstance(error, ChunkGapError):
            self._pool.lost(worker, error)
        if live.fruitless >= _FRUITLESS_LIMIT or self._pool.hopeless:
            raise GenerationFailedError(str(error), live.joined.generation()) from error
        live.joined.finish_if_full()
        self._emit(
            Event(
                EventKind.RETRY,
                subject=live.request.trajectory_id or live.request.request_id,
                reason=_reason(error),
                domain=live.request.domain,
                detail={
                    "worker": worker.worker,
                    "tokens": len(live.joined),
                    "error": one_line(error),
                },
            )
        )

    async def close(self) -> None:
        """Cancel the recovery of workers and wait for pending aborts."""
        await self._pool.close()
        await self._prefill.close()


def _reason(error: Exception) -> Reason:
    return Reason.WORKER_LEFT if isinstance(error, WorkerLeftError) else Reason.ENGINE_ERROR

"""Prefill on separate workers (prefill-decode disaggregation, ROLLART section 6.3).

A request first goes to a prefill worker, which computes and keeps the KV cache of the prompt; then
to a decode worker, which fetches the part that it has not cached itself and samples every token.
Workers of both kinds are sticky by trajectory, or by group if requests name one, so that each
processes only the new tokens of a later turn's prompt: the previous action and the observation. The
invariant: a request that no prefill worker can take is still decoded, by a worker that computes the
prompt too; a KV cache that is no longer needed is released at once.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass, replace

from rollart_flow.control.inference.routing import FixedAffinity
from rollart_flow.control.inference.worker_pool import Recover, WorkerPool
from rollart_flow.control.loop.waits import waiting
from rollart_flow.control.protocols import Emit, Inference
from rollart_flow.errors import EngineError, RequestRefusedError
from rollart_flow.types import Chunk, GenerationRequest, Prefix

_TRIES = 2
"""Prefill workers to try per request, since the request itself may crash them."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A request for a decode worker, with its prefilled prefix."""

    request: GenerationRequest
    """The request, with the prefix that a prefill worker holds for it, if any."""
    worker: Inference | None = None
    """Prefill worker that holds the prefix, or None."""

    @property
    def by(self) -> str:
        """Name of the prefill worker; empty if there is none."""
        return "" if self.worker is None else self.worker.worker


class Prefill:
    """Sends prompts to prefill workers ahead of decoding.

    Args:
        workers: prefill workers; may be empty.
        emit: receives events for lost workers.
        recover: brings lost workers back; by default they stay lost.
    """

    def __init__(self, workers: Iterable[Inference], emit: Emit, recover: Recover | None) -> None:
        self._pool = WorkerPool(workers, emit, FixedAffinity({}), recover)

    async def ahead(self, request: GenerationRequest) -> Prefilled:
        """Have a prefill worker compute the prompt, without waiting for lost workers."""
        router = self._pool.router
        for _ in range(_TRIES):
            if not len(router):
                break
            worker = router.route(request)
            router.begin(worker)
            try:
                prefix = await self._ask(worker, request)
                return Prefilled(replace(request, prefix=prefix), worker)
            except RequestRefusedError:
                break  # the decode worker reports the reason
            except EngineError as error:
                self._pool.lost(worker, error)
            finally:
                router.end(worker)
        return Prefilled(request)

    async def _ask(self, worker: Inference, request: GenerationRequest) -> Prefix | None:
        asked = replace(request, request_id=_own_id(request), prefill_only=True)
        try:
            with waiting(f"prefill({asked.request_id} on {worker.worker})"):
                return await _answer(worker.generate(asked), worker.worker)
        except BaseException:
            self._pool.abort(worker, asked.request_id)
            raise

    def give_up(self, prefilled: Prefilled) -> None:
        """Abort a prefill whose KV cache will not be fetched."""
        if prefilled.worker is not None:
            self._pool.abort(prefilled.worker, _own_id(prefilled.request))

    def release(self, trajectory_id: str) -> None:
        """Forget the placement of a trajectory that has ended."""
        self._pool.router.release(trajectory_id)

    async def close(self) -> None:
        """Cancel the recovery of workers and wait for pending aborts."""
        await self._pool.close()


def _own_id(request: GenerationRequest) -> str:
    """Return the id of the prefill request."""
    return f"{request.request_id}/prefill"


async def _answer(stream: AsyncIterator[Chunk], worker: str) -> Prefix | None:
    try:
        async for chunk in stream:
            if chunk.finish_reason is not None:
                return chunk.prefix
        raise EngineError(f"worker {worker} ended a prefill without a reason")
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()

"""Prefill on workers of their own, ahead of the decode workers (PD disaggregation, ROLLART 6.3).

A request first goes to a prefill worker, which computes the KV cache of its prompt and keeps it;
then to a decode worker, which fetches what it has not cached itself, and draws every token. Both
kinds keep to a trajectory, or to a group where requests name one, so that of a later turn's prompt
either one handles only what is new: the action before it and the observation. The invariant: a
request that no prefill worker can take is decoded all the same, by a worker that computes its
prompt too; what was computed and is not wanted is given up at once.
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
"""Prefill workers that one request is sent to: it may be the request that kills them."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A request on its way to a decode worker."""

    request: GenerationRequest
    """With the prefix that a worker holds for it, if one does."""
    worker: Inference | None = None
    """Which one does."""

    @property
    def by(self) -> str:
        """Name of the worker; empty if none holds anything."""
        return "" if self.worker is None else self.worker.worker


class Prefill:
    """Has prompts computed ahead.

    Args:
        workers: prefill workers; there may be none.
        emit: where lost ones are reported.
        recover: brings them back; by default they stay lost.
    """

    def __init__(self, workers: Iterable[Inference], emit: Emit, recover: Recover | None) -> None:
        self._staff = WorkerPool(workers, emit, FixedAffinity({}), recover)

    async def ahead(self, request: GenerationRequest) -> Prefilled:
        """Have the prompt computed where a worker can; waits for no worker to come back."""
        router = self._staff.router
        for _ in range(_TRIES):
            if not len(router):
                break
            worker = router.route(request)
            router.begin(worker)
            try:
                prefix = await self._ask(worker, request)
                return Prefilled(replace(request, prefix=prefix), worker)
            except RequestRefusedError:
                break  # the decode worker says why
            except EngineError as error:
                self._staff.lost(worker, error)
            finally:
                router.end(worker)
        return Prefilled(request)

    async def _ask(self, worker: Inference, request: GenerationRequest) -> Prefix | None:
        asked = replace(request, request_id=_own_id(request), prefill_only=True)
        try:
            with waiting(f"prefill({asked.request_id} on {worker.worker})"):
                return await _answer(worker.generate(asked), worker.worker)
        except BaseException:
            self._staff.abort(worker, asked.request_id)
            raise

    def give_up(self, prefilled: Prefilled) -> None:
        """Nobody will fetch what was computed, or go on to."""
        if prefilled.worker is not None:
            self._staff.abort(prefilled.worker, _own_id(prefilled.request))

    def release(self, trajectory_id: str) -> None:
        """A trajectory is over: its placement can be forgotten."""
        self._staff.router.release(trajectory_id)

    async def close(self) -> None:
        """Give recoveries up and wait for aborts that are under way."""
        await self._staff.close()


def _own_id(request: GenerationRequest) -> str:
    """Of the request for the prompt alone."""
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

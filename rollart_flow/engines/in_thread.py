"""`ThreadInference`: an engine in a thread of the caller's process as an inference worker.

An engine that computes in its event loop blocks it for the time of a step, which a long prompt can
make long. Here the engine has a loop of its own, and the caller's goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar, cast

from rollart_flow.control.loop.inbox import Inbox
from rollart_flow.control.protocols import Inference
from rollart_flow.engines.base import Delivery, Engine, EngineFailure
from rollart_flow.errors import EngineError
from rollart_flow.resources.local import LoopThread
from rollart_flow.text import one_line
from rollart_flow.types import Chunk, GenerationRequest

T = TypeVar("T")


class ThreadInference:
    """One engine in a thread; implements `control.protocols.Inference`. Use `start` to create it.

    Args:
        thread: the thread, which ends with `close`.
        engine: the engine, which belongs to the thread's loop.
        worker: name of the worker.
        hardware: hardware class that it counts as.
    """

    def __init__(self, thread: LoopThread, engine: Engine, worker: str, hardware: str) -> None:
        self._thread, self._engine = thread, engine
        self._worker, self._hardware = worker, hardware

    @classmethod
    async def start(cls, make: Callable[[], Engine], *, worker: str, hardware: str) -> Self:
        """Start a thread and make the engine in it.

        Raises:
            Exception: what `make` raises.
        """
        thread = LoopThread()

        async def made() -> Engine:
            return make()

        try:
            engine = await asyncio.wrap_future(_started(thread, made()))
        except BaseException:
            await asyncio.to_thread(thread.close)
            raise
        return cls(thread, engine, worker, hardware)

    @property
    def worker(self) -> str:
        """The name of the worker."""
        return self._worker

    @property
    def hardware(self) -> str:
        """The hardware class that it counts as."""
        return self._hardware

    @property
    def stands_for(self) -> frozenset[str]:
        """The hardware classes whose requests it serves: its own alone."""
        return frozenset({self._hardware})

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the tokens of a request; see `control.protocols.Inference.generate`."""
        inbox: Inbox[Delivery] = Inbox()
        loop = asyncio.get_running_loop()

        def deliver(delivery: Delivery) -> None:
            loop.call_soon_threadsafe(inbox.put, delivery)

        sending = _started(self._thread, self._send(request, deliver))
        try:
            finished = False
            while not finished:
                delivery = await inbox.get()
                if isinstance(delivery, EngineFailure):
                    raise delivery.error
                finished = delivery.finish_reason is not None
                yield delivery
        finally:
            sending.cancel()  # of a request that goes on: the engine aborts it

    async def _send(self, request: GenerationRequest, deliver: Callable[[Delivery], None]) -> None:
        """Deliver the chunks of a request, or its failure."""
        try:
            async for chunk in self._engine.generate(request):
                deliver(chunk)
        except EngineError as error:
            deliver(EngineFailure(request.request_id, error))
        except Exception as error:  # noqa: BLE001  the caller must be told of any end
            failed = EngineError(f"{type(error).__name__}: {one_line(error)}")
            deliver(EngineFailure(request.request_id, failed))

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with the tokens sampled so far."""
        await asyncio.wrap_future(_started(self._thread, self._engine.abort(request_id)))

    async def recover(self, worker: Inference) -> Sequence[Inference]:
        """Return the worker itself after a failed step, unless its engine has failed for good."""
        return () if self._engine.failed else (worker,)

    async def close(self) -> None:
        """Close the engine and end the thread."""
        await asyncio.wrap_future(_started(self._thread, self._engine.close()))
        await asyncio.to_thread(self._thread.close)


def _started(thread: LoopThread, work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine in the loop of another thread, whose futures are those of threads."""
    return cast(Future[T], thread.start(work))

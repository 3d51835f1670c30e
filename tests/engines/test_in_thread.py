"""An engine in a thread: the same tokens, aborts and errors, and a caller's loop that goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest
import torch

from rollart_flow.control.inference.generation_builder import GenerationFailedError
from rollart_flow.control.inference.llm_proxy import LLMProxy
from rollart_flow.engines.base import Engine
from rollart_flow.engines.embedded import EmbeddedEngine
from rollart_flow.engines.in_thread import ThreadInference
from rollart_flow.errors import EngineError, RequestRefusedError, SettingsError
from rollart_flow.models.folder import load_folder
from rollart_flow.models.policy import Policy
from rollart_flow.models.version_zero import materialize
from rollart_flow.types import Chunk, Event, FinishReason, GenerationRequest, Sampling

REQUEST = GenerationRequest("r0", (5, 6, 7, 8), Sampling(max_tokens=24))


def embedded(folder: Path) -> Engine:
    return EmbeddedEngine(*load_folder(folder), max_context=64, max_batch=2, chunk_tokens=8)


class StuckEngine(Engine):
    """Blocks its loop in each request until an event, or raises an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered, self.free = threading.Event(), threading.Event()
        self._error = error

    @property
    def version(self) -> int:
        return 0

    @property
    def failed(self) -> str:
        return "" if self._error is None else "it is broken"

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self.entered.set()
        if self._error is not None:
            raise self._error
        self.free.wait(60)
        yield Chunk(request.request_id, 0, (5,), (-1.0,), (0,), FinishReason.STOP)

    async def abort(self, request_id: str) -> None: ...
    async def suspend(self) -> None: ...
    async def release(self) -> int:
        return 0

    async def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None: ...
    async def resume(self) -> None: ...
    async def close(self) -> None: ...


def threaded(
    make: Callable[[], Engine], test: Callable[[ThreadInference], Awaitable[None]]
) -> None:
    async def main() -> None:
        worker = await ThreadInference.start(make, worker="engine-0", hardware="CPU")
        try:
            await test(worker)
        finally:
            await worker.close()
        left = [thread for thread in threading.enumerate() if thread.name == "actors"]
        assert not left

    asyncio.run(main())


async def chunks(worker: ThreadInference | Engine, request: GenerationRequest) -> list[Chunk]:
    return [chunk async for chunk in worker.generate(request)]


def test_it_has_the_chunks_of_the_engine(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    materialize(Policy.tiny(), folder)

    async def directly() -> list[Chunk]:
        engine = embedded(folder)
        try:
            return await chunks(engine, REQUEST)
        finally:
            await engine.close()

    wanted = asyncio.run(directly())

    async def test(worker: ThreadInference) -> None:
        assert await chunks(worker, REQUEST) == wanted
        with pytest.raises(RequestRefusedError, match="not below 105"):
            await chunks(worker, GenerationRequest("r1", (1 << 20,), Sampling()))
        stream = worker.generate(GenerationRequest("r2", (5, 6), Sampling(max_tokens=60)))
        first = await anext(stream)
        await worker.abort("r2")
        rest = [chunk async for chunk in stream]
        tokens = sum(len(chunk.token_ids) for chunk in (first, *rest))
        assert rest[-1].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        assert tokens <= 60
        assert [each.worker for each in await worker.recover(worker)] == ["engine-0"]

    threaded(lambda: embedded(folder), test)


def test_the_refusal_of_one_request_loses_no_worker(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    materialize(Policy.tiny(), folder)
    events: list[Event] = []

    async def test(worker: ThreadInference) -> None:
        proxy = LLMProxy([worker], events.append)
        with pytest.raises(GenerationFailedError, match="not below 105"):
            await proxy.generate(GenerationRequest("r1", (1 << 20,), Sampling()))
        assert (await proxy.generate(REQUEST)).token_ids
        assert events == []
        await proxy.close()

    threaded(lambda: embedded(folder), test)


def test_the_loop_of_the_caller_goes_on_during_a_step() -> None:
    engine = StuckEngine()

    async def test(worker: ThreadInference) -> None:
        asking = asyncio.create_task(chunks(worker, REQUEST))
        await asyncio.to_thread(engine.entered.wait, 60)
        assert not asking.done()
        engine.free.set()
        (chunk,) = await asking
        assert chunk.finish_reason is FinishReason.STOP

    threaded(lambda: engine, test)


@pytest.mark.parametrize("error", [EngineError("the step failed"), ZeroDivisionError("no step")])
def test_any_error_of_a_step_is_an_engine_error(error: Exception) -> None:
    async def test(worker: ThreadInference) -> None:
        with pytest.raises(EngineError, match=str(error)):
            await chunks(worker, REQUEST)
        assert not await worker.recover(worker), "an engine that failed for good is not used again"

    threaded(lambda: StuckEngine(error), test)


def test_an_engine_that_cannot_be_made_leaves_no_thread() -> None:
    def refuse() -> Engine:
        raise SettingsError("no such engine")

    async def main() -> None:
        with pytest.raises(SettingsError, match="no such engine"):
            await ThreadInference.start(refuse, worker="engine-0", hardware="CPU")

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "actors"]


def test_a_proxy_generates_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    materialize(Policy.tiny(), folder)

    async def test(worker: ThreadInference) -> None:
        proxy = LLMProxy([worker], lambda event: None)
        generation = await proxy.generate(REQUEST)
        assert 0 < len(generation.token_ids) <= 24
        await proxy.close()

    threaded(lambda: embedded(folder), test)

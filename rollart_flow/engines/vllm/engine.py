"""The vLLM engine: vLLM's asynchronous engine behind `Engine`, on CPUs and GPUs alike.

vLLM computes in a separate process; this class runs in its caller's event loop. Updates go through
vLLM's documented weight transfer (`transfer`). The invariants: each token carries the version under
which it was sampled, which vLLM's own record confirms; a KV cache that another engine computed is
used only under the version that computed it; after an update has failed midway, or vLLM's process
has died, no token is sampled (`failed`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from multiprocessing import active_children
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollart_flow.engines.base import Engine, EnginePhase
from rollart_flow.engines.requests import refused
from rollart_flow.engines.vllm.adapters import lay, lay_zeros, serves_adapters
from rollart_flow.engines.vllm.generation import VllmGeneration
from rollart_flow.engines.vllm.process import start
from rollart_flow.engines.vllm.receiver import Receiver, written
from rollart_flow.engines.vllm.settings import VllmSettings
from rollart_flow.engines.vllm.stream import VllmStream, check
from rollart_flow.errors import EngineError, SettingsError, WeightsError
from rollart_flow.models.architectures import placeholder_of
from rollart_flow.models.folder import check_tensors, read_config
from rollart_flow.models.version_zero import load_codec
from rollart_flow.types import Chunk, GenerationRequest

if TYPE_CHECKING:
    import torch

    from rollart_flow.weights.base import AdapterEntry

_DEAD = "vLLM's process has died"


class VllmEngine(Engine):
    """A token-in-token-out engine; see `Engine` for the contract of each method."""

    def __init__(self, folder: str | Path, settings: VllmSettings, *, version: int = 0) -> None:
        """Start vLLM with the model of a Hugging Face folder; takes seconds to minutes.

        Raises SettingsError if vLLM does not support the model, or a setting is impossible, and
        EngineError if vLLM could not start.
        """
        self._config = read_config(folder)
        longest = self._config.max_position_embeddings
        self._context = settings.max_context or longest
        if not 1 < self._context <= longest:
            raise SettingsError(
                f"engine: max_context must be from 2 to the model's {longest}, not {self._context}"
            )
        self._settings = settings
        before = set(active_children())
        pictures = None if placeholder_of(folder) is None else load_codec(folder).pictures
        self._llm: Any = start(folder, self._config, settings, sees=pictures is not None)
        limits = (self._context, self._config.vocab_size)
        self._generation = VllmGeneration(self._llm, limits, settings, version, pictures)
        self._processes = set(active_children()) - before
        room = settings.lora is None and serves_adapters(self._llm)
        self._base = version if room else None
        sent, ranks = settings.sent, settings.tensor_parallel
        self._receiver = None if sent is None else Receiver(sent.weights_uri, ranks)
        self._streams: dict[str, VllmStream] = {}
        self._tasks: dict[VllmStream, asyncio.Task[None]] = {}
        self._ready: asyncio.Task[None] | None = None
        self._suspended = False
        self._released = False
        self._closed = False
        self._failed = ""
        self._died = asyncio.Event()

    @property
    def version(self) -> int:
        return self._generation.version

    @property
    def failed(self) -> str:
        return self._failed

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        self._check(request)
        stream = VllmStream(request, self._settings.chunk_tokens)
        self._streams[request.request_id] = stream
        self._tasks[stream] = asyncio.create_task(self._answer(stream))
        try:
            finished = False
            while not finished:
                chunk = await stream.receive()
                finished = chunk.finish_reason is not None
                yield chunk
        finally:
            await self._drop(stream)

    async def abort(self, request_id: str) -> None:
        """End a request: its stream ends with the tokens sampled so far.

        Unknown ids are ignored, unless the engine holds the prompt of that request for another
        engine.
        """
        stream = self._streams.get(request_id)
        if stream is None:
            if not (self._closed or self._failed):
                await self._generation.give_up(request_id)
            return
        stream.unwanted = True
        if stream.generating:
            await self._llm.abort(request_id)

    async def suspend(self) -> None:
        """Stop sampling until `resume`; the tokens sampled so far are delivered.

        vLLM drops every cached prefix, since the next tokens may use other weights. A prompt that
        is being fetched is returned, to be computed by this engine. For a prompt held for another
        engine, this method waits until that engine has fetched it or it is freed.
        """
        await self._begin()
        if not self._suspended:
            await self._generation.stop_fetching(self._streams.values())
            await self._ask(self._llm.pause_generation(mode="keep", clear_cache=True))
            self._suspended = True
        for stream in self._streams.values():
            stream.flush()

    async def release(self) -> int:
        """Drop the KV cache until `resume` and return its size in bytes; 0 on CPUs, where vLLM
        cannot drop it."""
        if self._released or not self._llm.model_config.enable_sleep_mode:
            return 0
        held = await self._ask(self._llm.collective_rpc("kv_cache_bytes"))
        await self._ask(self._llm.release_kv_cache_memory())
        self._released = True
        return sum(held)

    async def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap all weights; requests in flight keep their tokens and rebuild their KV cache."""
        check_tensors(self._config, tensors)
        descriptor = await asyncio.to_thread(written, tensors)
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        try:
            await self._swap(version, lambda: self._transfer(path, version))
        finally:
            os.close(descriptor)
        self._base = None if self._base is None else version

    @property
    def base(self) -> int | None:
        return self._base

    async def adapt(
        self, version: int, tensors: Mapping[str, torch.Tensor], adapter: AdapterEntry
    ) -> None:
        """Swap the matrices of the adapter; requests in flight keep their tokens and rebuild their
        KV cache."""
        if self._base != adapter.base:
            raise WeightsError(
                f"version {version} is an adapter over version {adapter.base}, and the engine "
                f"{'serves no adapters' if self._base is None else f'holds {self._base}'}"
            )
        await self._swap(version, lambda: lay(self._generation, version, tensors, adapter))

    async def receive(self, version: int) -> bool:
        receiver = self._receiver
        if receiver is None or not await receiver.offers(version):
            return False
        await self._swap(version, lambda: receiver.take(self._llm, version))
        return True

    async def _swap(self, version: int, update: Callable[[], Coroutine[Any, Any, None]]) -> None:
        suspended = self._suspended
        await self.suspend()
        await self._ask(update())
        self._generation.version = version
        if not suspended:
            await self.resume()

    async def resume(self) -> None:
        await self._begin()
        if self._released:
            await self._ask(self._llm.wake_up(["kv_cache"]))
            self._released = False
        await self._ask(self._llm.resume_generation())
        self._suspended = False
        self._generation.fetches = True

    async def close(self) -> None:
        """Abort all requests in flight and end vLLM's process. May be called twice."""
        if self._closed:
            return
        self._closed = True
        for request_id in tuple(self._streams):
            await self.abort(request_id)
        if self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))
        if self._ready is not None:
            self._watch(False)
        if self._receiver is not None:
            self._receiver.close()
        self._llm.shutdown()
        self._llm = self._generation.llm = None
        for process in self._processes:
            process.join()  # vLLM has ended or killed the process without joining it

    def _check(self, request: GenerationRequest) -> None:
        if self._closed:
            raise EngineError(f"request {request.request_id!r}: the engine is closed")
        if self._failed:
            raise EngineError(self._failed)
        if request.request_id in self._streams:
            raise refused(request, "a request of this id is in flight")
        prefills, vocabulary = self._settings.phase is EnginePhase.PREFILL, self._config.vocab_size
        check(request, context=self._context, vocabulary=vocabulary, prefills=prefills)

    async def _answer(self, stream: VllmStream) -> None:
        try:
            await self._begin()
            await self._generation.answer(stream)
        except Exception as error:  # noqa: BLE001  any error must reach the waiting reader
            stream.fail(self._fault(error))

    async def _drop(self, stream: VllmStream) -> None:
        """Remove a stream and cancel its task, which aborts a request in flight."""
        del self._streams[stream.request.request_id]
        task = self._tasks.pop(stream)
        task.cancel()
        await asyncio.wait((task,))

    async def _begin(self) -> None:
        if self._ready is None:
            self._ready = asyncio.create_task(self._ask(self._introduce()))
        if not self._ready.done():
            await asyncio.wait((self._ready,))
        self._ready.result()

    async def _introduce(self) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._watch(True)
        await self._llm.get_supported_tasks()
        await self._llm.init_weight_transfer_engine(WeightTransferInitRequest())
        await self._llm.update_weight_version(str(self._generation.version))
        if self._base is not None:
            await lay_zeros(self._generation, self._generation.version)

    async def _transfer(self, path: str, version: int) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest({"path": path}))
        await self._llm.finish_weight_update(weight_version=str(version))
        if self._base is not None:
            await lay_zeros(self._generation, version)

    def _watch(self, begin: bool) -> None:
        """Start or stop watching for the death of vLLM's processes, which then no longer answer."""
        loop = asyncio.get_running_loop()
        for process in self._processes:
            loop.remove_reader(process.sentinel)
            if begin:
                loop.add_reader(process.sentinel, self._bury)

    def _bury(self) -> None:
        self._watch(False)
        self._failed = _DEAD
        self._died.set()
        for stream in self._streams.values():
            stream.fail(EngineError(_DEAD))

    async def _ask(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Return the answer of a command; a failure marks the engine as failed, since vLLM's state
        is then unknown."""
        asked, died = asyncio.create_task(answer), asyncio.create_task(self._died.wait())
        try:
            await asyncio.wait((asked, died), return_when=asyncio.FIRST_COMPLETED)
            if self._died.is_set():
                raise EngineError(_DEAD)
            return await asked
        except Exception as error:  # vLLM raises bare exceptions for failures of its processes
            fault = self._fault(error)
            self._failed = fault.message
            raise fault from error
        finally:
            asked.cancel()
            died.cancel()

    def _fault(self, error: Exception) -> EngineError:
        from vllm.v1.engine.exceptions import EngineDeadError

        if isinstance(error, EngineDeadError):
            self._failed = _DEAD
        line = " ".join(str(error).split()) or type(error).__name__
        return EngineError(self._failed or f"vLLM has failed: {line}")

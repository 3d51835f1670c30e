"""The embedded engine: small models on torch, in the process and event loop of the caller.

The engine gives laptops, tests and demos the semantics of a group of vLLM workers (ROLLART section
6): continuous batching, shared prefixes, streamed chunks, aborts that keep tokens, and a weight
update that interrupted generations survive. Steps run inline in the event loop, one at a time. The
invariant: each token is sampled under exactly one version, which is recorded with it, and no token
is sampled while the engine is suspended.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping

import torch

from rollart_flow.engines.base import Engine
from rollart_flow.engines.batch import DecodeBatch
from rollart_flow.engines.requests import EmbeddedStream, check_request, refused
from rollart_flow.errors import EngineError, SettingsError
from rollart_flow.models.architectures import NO_MIXTURE
from rollart_flow.models.device import computing_device
from rollart_flow.models.folder import check_tensors
from rollart_flow.models.language_model import ModelShape
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.types import Chunk, FinishReason, GenerationRequest

_TURNS = 4
"""Turns of the event loop between two steps. A message between objects of a loop takes some turns,
and each of them would last as long as a step if the engine stepped in every turn."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class EmbeddedEngine(Engine):
    """A token-in-token-out engine; see `Engine` for the contract of each method."""

    def __init__(
        self,
        config: ModelShape,
        tensors: Mapping[str, torch.Tensor],
        *,
        version: int = 0,
        seed: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        eager: bool = False,
        max_context: int | None = None,
        max_batch: int = 64,
        cached_rows: int = 64,
        chunk_tokens: int = 32,
    ) -> None:
        """Copy the weights and reserve the cache.

        Args:
            config: shape of the model.
            tensors: weights in Hugging Face names.
            version: policy version of the weights.
            seed: seed of all sampling, combined with the request id.
            dtype: compute dtype, float32 or bfloat16; logprobs are float32 in both cases.
            device: compute device: cpu, or cuda for the first GPU visible to the process.
            eager: whether decode steps are never captured as CUDA graphs.
            max_context: longest chain in tokens, prompt and answer; None means the model's limit.
            max_batch: maximum number of requests that decode together; others wait.
            cached_rows: finished chains whose prefix is kept for reuse, beyond `max_batch` rows;
            fewer if they do not fit on the GPU.
            chunk_tokens: number of tokens per streamed chunk; a shorter answer is one chunk.

        Raises:
            SettingsError: a setting is impossible, such as cuda where there is no GPU.
            EngineError: the cache does not fit on the GPU.
            WeightsError: the weights do not match the config.
        """
        context = config.max_position_embeddings if max_context is None else max_context
        _check_settings(config, dtype, context)
        if max_batch < 1 or cached_rows < 0 or chunk_tokens < 1:
            raise SettingsError(
                "engine: max_batch and chunk_tokens must be at least 1, cached_rows at least 0"
            )
        check_tensors(config, tensors)
        self._config = config
        self._context = context
        self._version = version
        self._sees = config.pictures() is not None
        self._batch = _batch_class(sees=self._sees)(
            config, tensors, device=computing_device(device), dtype=DTYPES[dtype], eager=eager,
            max_batch=max_batch, cached_rows=cached_rows, max_context=context, seed=seed,
            chunk_tokens=chunk_tokens,
        )  # fmt: skip
        self._streams: dict[str, EmbeddedStream] = {}
        self._waiting: deque[EmbeddedStream] = deque()
        self._suspended = False
        self._closed = False
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        stream = self._submit(request)
        try:
            finished = False
            while not finished:
                chunk = await stream.receive()
                finished = chunk.finish_reason is not None
                yield chunk
        finally:
            self._end(request.request_id, stream)

    async def abort(self, request_id: str) -> None:
        """End a request: its stream ends with the tokens so far. Unknown ids are ignored."""
        self._end(request_id, self._streams.get(request_id))

    async def suspend(self) -> None:
        """Stop sampling until `resume`; the tokens sampled so far are delivered."""
        # Steps run in this loop between two awaits, so no step is running now.
        self._suspended = True
        self._batch.deliver_all(self._version)
        self._signal()

    async def release(self) -> int:
        self._recall()
        return self._batch.release()

    async def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap all weights; requests in flight keep their tokens and rebuild their KV cache."""
        check_tensors(self._config, tensors)
        self._batch.deliver_all(self._version)
        self._batch.model.load(tensors)
        self._version = version
        self._recall()

    def _recall(self) -> None:
        """Put requests in flight at the head of the queue, so that their KV cache is rebuilt."""
        self._waiting.extendleft(reversed(self._batch.recall()))

    async def resume(self) -> None:
        self._batch.restore()
        self._suspended = False
        self._signal()

    async def close(self) -> None:
        """Abort all requests in flight and release all resources. May be called twice."""
        self._closed = True
        for request_id in tuple(self._streams):
            await self.abort(request_id)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None

    def _submit(self, request: GenerationRequest) -> EmbeddedStream:
        self._check(request)
        prompt = len(request.prompt_ids)
        stream = EmbeddedStream(request, min(prompt + request.sampling.max_tokens, self._context))
        self._streams[request.request_id] = stream
        if prompt == self._context:
            self._streams.pop(request.request_id)
            stream.send([], [], self._version, FinishReason.LENGTH)
            return stream
        self._waiting.append(stream)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="engine steps")
        self._signal()
        return stream

    def _check(self, request: GenerationRequest) -> None:
        if self._closed:
            raise EngineError(f"request {request.request_id!r}: the engine is closed")
        if request.request_id in self._streams:
            raise refused(request, "a request of this id is in flight")
        if request.images and not self._sees:
            raise refused(request, "the model takes no images")
        check_request(request, context=self._context, vocabulary=self._config.vocab_size)

    def _end(self, request_id: str, stream: EmbeddedStream | None) -> None:
        """Abort a stream if it is still in flight."""
        if stream is None or self._streams.get(request_id) is not stream:
            return
        del self._streams[request_id]
        if stream.row is None:
            self._waiting.remove(stream)
            stream.send([], [], self._version, FinishReason.ABORT)
        else:
            self._batch.deliver(stream, self._version, FinishReason.ABORT)
            self._batch.remove(stream.row)
        self._signal()

    def _signal(self) -> None:
        """Wake the step loop if there is work and the engine is not suspended; else pause it."""
        if not self._suspended and (self._waiting or len(self._batch)):
            self._work.set()
        else:
            self._work.clear()

    async def _run(self) -> None:
        while True:
            while not self._work.is_set():  # it may be cleared again before this task wakes up
                await self._work.wait()
            try:
                self._step()
            except Exception as error:  # noqa: BLE001  any error must reach the waiting readers
                self._fail(error)
            self._signal()
            for _ in range(_TURNS):
                await asyncio.sleep(0)  # let readers and new requests in; no time passes

    @torch.inference_mode()
    def _step(self) -> None:
        self._batch.admit(self._waiting)
        for stream in self._batch.step(self._version):
            del self._streams[stream.request.request_id]

    def _fail(self, error: Exception) -> None:
        """End every stream with the error; later requests start with a clean cache."""
        line = next(iter(str(error).splitlines()), type(error).__name__)
        for stream in self._streams.values():
            stream.fail(EngineError(f"engine step under version {self._version} failed: {line}"))
        self._streams.clear()
        self._waiting.clear()
        self._batch.reset()


def _check_settings(config: ModelShape, dtype: str, context: int) -> None:
    """Refuse a model, dtype or length of context that the engine does not compute.

    Raises:
        SettingsError: see above.
    """
    if dtype not in DTYPES:
        raise SettingsError(f"engine: dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if not 1 <= context <= config.max_position_embeddings:
        raise SettingsError(
            f"engine: max_context must be from 1 to the model's "
            f"{config.max_position_embeddings}, not {context}"
        )
    if isinstance(config, ModelConfig) and config.experts is not None:
        raise SettingsError(NO_MIXTURE)


def _batch_class(*, sees: bool) -> type[DecodeBatch]:
    """Return the class of batches; a model that takes images computes its whole chains anew."""
    if not sees:
        return DecodeBatch
    from rollart_flow.engines.whole_chains import WholeChainBatch

    return WholeChainBatch

"""The batch that the embedded engine decodes: who is in it, and one step of it.

Continuous batching after Orca (Yu et al., OSDI 2022, section 3): requests enter and leave between
steps. Each row's state lies in arrays, so that a step costs Python per batch, not per row; only
rows that deliver a chunk or end are visited one by one. Plain synchronous code: no asyncio here.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rollart_flow.engines.kv_cache import Int64Array, RowCache
from rollart_flow.engines.sampler import FloatArray, Sampler
from rollart_flow.engines.stream import Stream
from rollart_flow.models.cached import CachedQwen3
from rollart_flow.models.qwen3 import ModelConfig
from rollart_flow.types import FinishReason

PREFILL_TOKENS = 2048
"""Most new tokens of one prefill, padding included, and about as many between two decode steps."""


@dataclass(frozen=True, slots=True)
class _Fill:
    """Tokens of a row whose keys and values are to be computed."""

    row: int
    start: int
    count: int
    source: int | None
    """Row that fills in the same admission, to copy the first `start` tokens from afterwards."""


class DecodeBatch:
    """Rows that decode together, under one set of weights."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        *,
        dtype: torch.dtype,
        max_batch: int,
        cached_rows: int,
        max_context: int,
        seed: int,
        chunk_tokens: int,
    ) -> None:
        rows = max_batch + cached_rows
        self.model = CachedQwen3(config, tensors, dtype)
        self._cache = RowCache(config, rows, max_context, dtype)
        self._sampler = Sampler(rows, config.vocab_size, seed)
        self._max_batch = max_batch
        self._chunk_tokens = chunk_tokens
        self._streams: dict[int, Stream] = {}
        """By row."""
        self._logprobs: FloatArray = np.zeros((rows, max_context + 1), np.float32)
        """Aligned with the cache's chains."""
        self._limits: Int64Array = np.zeros(rows, np.int64)
        self._due: Int64Array = np.zeros(rows, np.int64)
        """Chain length at which the next chunk is delivered."""
        self._stops: Int64Array = np.full((rows, 1), -1, np.int64)
        """Stop tokens of each row, filled up with -1."""
        self._rows: Int64Array = np.zeros(0, np.int64)
        self._changed = False

    def __len__(self) -> int:
        return len(self._streams)

    def admit(self, waiting: deque[Stream]) -> None:
        """Give rows to waiting streams, in order, while there is room; compute their prefixes."""
        waves: list[list[_Fill]] = []
        wave_of: dict[int, int] = {}
        budget = PREFILL_TOKENS
        while waiting and budget > 0 and len(self._streams) < self._max_batch:
            stream = waiting.popleft()
            row, shared, source = self._cache.place(stream.tokens)
            wave = 0
            if source in wave_of:
                wave = wave_of[source] + 1
            elif source is not None:
                self._cache.tensors.copy_row(source, row, shared)
                source = None
            wave_of[row] = wave
            count = len(stream.tokens) - 1 - shared
            budget -= count
            while len(waves) <= wave:
                waves.append([])
            waves[wave].append(_Fill(row, shared, count, source))
            self._bind(stream, row)
        for fills in waves:
            self._fill(fills)

    def step(self, version: int) -> list[Stream]:
        """Draw one token in every row and deliver what is due; the streams that ended.

        Raises:
            EngineError: the weights give logits that are not finite.
        """
        self._compact()
        rows = self._rows
        tokens, logprobs, kept = self._sampler.draw(self._decode(), self._cache.held[rows] + 1)
        self._cache.held[rows] += 1
        held = self._cache.held[rows]
        self._cache.chain[rows, held] = tokens
        self._logprobs[rows, held] = logprobs
        for index, ids in kept.items():
            self._streams[int(rows[index])].kept.append(ids)
        stopped = (self._stops[rows] == tokens[:, None]).any(1)
        ended = stopped | (held + 1 >= self._limits[rows])
        for index in np.flatnonzero(ended | (held + 1 >= self._due[rows])):
            stream = self._streams[int(rows[index])]
            reason = FinishReason.STOP if stopped[index] else FinishReason.LENGTH
            self.deliver(stream, version, reason if ended[index] else None)
        return [self.remove(int(row)) for row in rows[ended]]

    def deliver(self, stream: Stream, version: int, reason: FinishReason | None) -> None:
        """Send the tokens that a stream has and its reader has not."""
        assert stream.row is not None
        span = (stream.row, slice(stream.sent, int(self._cache.held[stream.row]) + 1))
        stream.send(
            self._cache.chain[span].tolist(), self._logprobs[span].tolist(), version, reason
        )
        self._due[stream.row] = stream.sent + self._chunk_tokens

    def deliver_all(self, version: int) -> None:
        """Send whatever was drawn, so that what comes may be of another version."""
        for stream in self._streams.values():
            assert stream.row is not None
            if self._cache.held[stream.row] + 1 > stream.sent:
                self.deliver(stream, version, None)

    def remove(self, row: int) -> Stream:
        """Take a stream out; its row keeps the prefix for others."""
        stream = self._streams.pop(row)
        stream.row = None
        self._cache.release(row)
        self._changed = True
        return stream

    def recall(self) -> list[Stream]:
        """Take out every stream with the tokens it has, to wait again, and forget all prefixes."""
        streams = list(self._streams.values())
        for stream in streams:
            assert stream.row is not None
            stream.tokens = self._cache.chain[stream.row, : self._cache.held[stream.row] + 1].copy()
            stream.row = None
        self._streams.clear()
        self._cache.forget()
        self._changed = True
        return streams

    def release(self) -> int:
        """Give back the memory of the cache, out of which all streams were taken; its bytes."""
        return self._cache.tensors.release()

    def restore(self) -> None:
        """Reserve the memory of the cache again, before the next step."""
        self._cache.tensors.restore()

    def reset(self) -> None:
        """Forget everything after a failure, numbers in the cache that are not finite included."""
        self.recall()
        self._cache.tensors.clear()

    def _bind(self, stream: Stream, row: int) -> None:
        stream.row = row
        self._streams[row] = stream
        self._limits[row] = stream.limit
        self._due[row] = stream.sent + self._chunk_tokens
        sampling = stream.request.sampling
        missing = len(sampling.stop_token_ids) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[row] = -1
        self._stops[row, : len(sampling.stop_token_ids)] = sampling.stop_token_ids
        self._sampler.bind(row, stream.request.request_id, sampling)
        self._changed = True

    def _fill(self, fills: list[_Fill]) -> None:
        """Prefill rows, those of similar length together."""
        for fill in fills:
            if fill.source is not None:
                self._cache.tensors.copy_row(fill.source, fill.row, fill.start)
        for group in _groups([fill for fill in fills if fill.count]):
            for done in range(0, group[0].count, PREFILL_TOKENS):
                self._prefill(
                    [
                        (fill.row, fill.start + done, min(fill.count - done, PREFILL_TOKENS))
                        for fill in group
                    ]
                )

    def _prefill(self, spans: list[tuple[int, int, int]]) -> None:
        rows, starts, counts = np.array(spans, np.int64).T
        columns = starts[:, None] + np.arange(counts.max())
        columns = np.minimum(columns, self._cache.length)
        self.model.prefill(
            self._cache.tensors,
            torch.from_numpy(self._cache.chain[rows[:, None], columns]),
            *(torch.from_numpy(np.ascontiguousarray(array)) for array in (rows, starts, counts)),
        )

    def _decode(self) -> torch.Tensor:
        """Feed each row its next token; float32 logits [len(rows), vocab_size]."""
        cache, rows = self._cache, self._rows
        top = int(rows[-1]) + 1
        held = cache.held[:top]
        places = held
        if top > len(rows):  # idle rows are computed along with the others and written nowhere
            active = cache.active[:top]
            places = np.where(active, held, cache.length)
            held = np.where(active, held, 0)
        return self.model.decode(
            cache.tensors,
            torch.from_numpy(cache.chain[np.arange(top), held]),
            torch.from_numpy(held),
            torch.from_numpy(places),
            torch.from_numpy(rows) if top > len(rows) else None,
        )

    def _compact(self) -> None:
        """Notice who came and went; where over a fifth of the range is idle, close the gaps."""
        if not self._changed:
            return
        active = self._cache.active
        rows = np.flatnonzero(active)
        count = len(rows)
        if 4 * rows[-1] > 5 * count + 16:
            for row, idle in zip(rows[rows >= count], np.flatnonzero(~active[:count]), strict=True):
                self._cache.swap(int(row), int(idle))
                self._bind(self._streams.pop(int(row)), int(idle))
                self._logprobs[idle] = self._logprobs[row]
            rows = np.arange(count)
        self._rows = rows
        self._sampler.select(rows)
        self._changed = False


def _groups(fills: list[_Fill]) -> Iterator[list[_Fill]]:
    """Longest first; at most half of a group's tokens are padding, where it is not tiny."""
    group: list[_Fill] = []
    for fill in sorted(fills, key=lambda fill: -fill.count):
        if group:
            width = group[0].count
            if width * (len(group) + 1) > PREFILL_TOKENS or (width > 32 and 2 * fill.count < width):
                yield group
                group = []
        group.append(fill)
    if group:
        yield group

"""The batch that the embedded engine decodes: its members, their prefills and one decode step.

Continuous batching after Orca (Yu et al., OSDI 2022, section 3): requests enter and leave between
steps. The state of the rows is stored in arrays, so the Python cost of a step is per batch, not per
row; only rows that deliver a chunk or end are visited one by one. This module is synchronous.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rollart_flow.engines.graphs import DecodeGraphs
from rollart_flow.engines.kv_cache import RowCache, rows_that_fit
from rollart_flow.engines.requests import EmbeddedStream
from rollart_flow.engines.sampler import FloatArray, Sampler
from rollart_flow.models.cached import CachedQwen3, cached_model
from rollart_flow.models.cached_model import CachedModel, Int64Array
from rollart_flow.models.key_values import KeyValues
from rollart_flow.models.language_model import ModelShape
from rollart_flow.types import FinishReason


@dataclass(frozen=True, slots=True)
class Fill:
    """A span of a row's tokens whose keys and values are to be computed."""

    row: int
    start: int
    count: int
    source: int | None
    """Row filled in the same admission, from which the first `start` tokens are copied afterwards;
    None if nothing is copied."""


def groups(fills: list[Fill], most: int) -> Iterator[list[Fill]]:
    """Yield groups of fills, longest first; at most half of a group's tokens are padding unless the
    group is tiny.

    Args:
        fills: non-empty fills.
        most: maximum tokens of one group, including padding; a single larger fill forms its own
        group.
    """
    group: list[Fill] = []
    for fill in sorted(fills, key=lambda fill: -fill.count):
        if group:
            width = group[0].count
            if width * (len(group) + 1) > most or (width > 32 and 2 * fill.count < width):
                yield group
                group = []
        group.append(fill)
    if group:
        yield group


PREFILL_TOKENS = 2048
"""Maximum number of new tokens of one prefill, including padding; roughly the same limit applies
between two decode steps."""


class DecodeBatch:
    """A set of rows that decode together under one set of weights."""

    def __init__(
        self,
        config: ModelShape,
        tensors: Mapping[str, torch.Tensor],
        *,
        device: torch.device,
        dtype: torch.dtype,
        eager: bool,
        max_batch: int,
        cached_rows: int,
        max_context: int,
        seed: int,
        chunk_tokens: int,
    ) -> None:
        rows = max_batch + cached_rows
        self.model = self._built(config, tensors, dtype, device)
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            each = KeyValues.row_bytes(config, max_context, dtype)
            rows = rows_that_fit(rows, max_batch, each, free)
        self._cache = RowCache(KeyValues(config, rows, max_context, dtype, device))
        self._captures = device.type == "cuda" and not eager
        self._graphs = self._new_graphs()
        self._sampler = Sampler(rows, config.vocab_size, seed, device)
        self._max_batch = max_batch
        self._chunk_tokens = chunk_tokens
        self._streams: dict[int, EmbeddedStream] = {}
        """The stream of each row."""
        self._logprobs: FloatArray = np.zeros((rows, max_context + 1), np.float32)
        """Aligned with the cache's chains."""
        self._limits: Int64Array = np.zeros(rows, np.int64)
        self._due: Int64Array = np.zeros(rows, np.int64)
        """Chain length at which the next chunk is delivered."""
        self._stops: Int64Array = np.full((rows, 1), -1, np.int64)
        """Stop tokens of each row, filled up with -1."""
        self._rows: Int64Array = np.zeros(0, np.int64)
        self._changed = False

    def _built(
        self, config: ModelShape, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype,
        device: torch.device,
    ) -> CachedModel:  # fmt: skip
        return cached_model(config, tensors, dtype, device)

    def __len__(self) -> int:
        return len(self._streams)

    def admit(self, waiting: deque[EmbeddedStream]) -> None:
        """Assign rows to waiting streams, in order, while there is room; compute their prefixes."""
        waves: list[list[Fill]] = []
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
            waves[wave].append(Fill(row, shared, count, source))
            self._bind(stream, row)
        for fills in waves:
            self._fill(fills)

    def step(self, version: int) -> list[EmbeddedStream]:
        """Sample one token in every row, deliver the chunks that are due and return the streams
        that ended.

        Raises:
            EngineError: the weights produce logits that are not finite.
        """
        self._compact()
        rows, logits = self._rows, self._decode()
        held = self._cache.held[rows] + 1
        tokens, logprobs, kept = self._sampler.sample(logits, held)
        self._cache.held[rows] = held
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

    def deliver(self, stream: EmbeddedStream, version: int, reason: FinishReason | None) -> None:
        """Send the tokens of a stream that were not delivered yet."""
        assert stream.row is not None
        span = (stream.row, slice(stream.sent, int(self._cache.held[stream.row]) + 1))
        stream.send(
            self._cache.chain[span].tolist(), self._logprobs[span].tolist(), version, reason
        )
        self._due[stream.row] = stream.sent + self._chunk_tokens

    def deliver_all(self, version: int) -> None:
        """Send all sampled tokens, so that later tokens may belong to another version."""
        for stream in self._streams.values():
            assert stream.row is not None
            if self._cache.held[stream.row] + 1 > stream.sent:
                self.deliver(stream, version, None)

    def remove(self, row: int) -> EmbeddedStream:
        """Remove a stream; its row keeps the prefix for other streams."""
        stream = self._streams.pop(row)
        stream.row = None
        self._cache.release(row)
        self._changed = True
        return stream

    def recall(self) -> list[EmbeddedStream]:
        """Remove every stream with its tokens, so that it can wait again; forget all prefixes."""
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
        """Free the cache, once all streams have been removed, and return its size in bytes."""
        self._graphs = None
        return self._cache.tensors.release()

    def restore(self) -> None:
        """Reserve the memory of the cache again, before the next step."""
        self._cache.tensors.restore()
        self._graphs = self._graphs or self._new_graphs()

    def reset(self) -> None:
        """Clear all state after a failure, including non-finite numbers in the cache."""
        self.recall()
        self._cache.tensors.clear()

    def _bind(self, stream: EmbeddedStream, row: int) -> None:
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

    def _fill(self, fills: list[Fill]) -> None:
        """Prefill rows, grouped by similar length."""
        for fill in fills:
            if fill.source is not None:
                self._cache.tensors.copy_row(fill.source, fill.row, fill.start)
        for group in groups([fill for fill in fills if fill.count], PREFILL_TOKENS):
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
        chain = self._cache.chain[rows[:, None], columns]
        self.model.prefill(self._cache.tensors, chain, rows, starts, counts)

    def _decode(self) -> torch.Tensor:
        """Feed each row its next token and return float32 logits [len(rows), vocab_size]."""
        cache, rows = self._cache, self._rows
        top = int(rows[-1]) + 1
        held = cache.held[:top]
        places = held
        if top > len(rows):  # idle rows are computed with the others; their results are discarded
            active = cache.active[:top]
            places = np.where(active, held, cache.length)
            held = np.where(active, held, 0)
        tokens = cache.chain[np.arange(top), held]
        wanted = rows if top > len(rows) else None
        if self._graphs is not None:
            return self._graphs.decode(tokens, held, places, wanted)
        return self.model.decode(cache.tensors, tokens, held, places, wanted)

    def _new_graphs(self) -> DecodeGraphs | None:
        """Build the graphs for the current cache memory; None if decode steps are not captured."""
        if not self._captures or not isinstance(self.model, CachedQwen3):
            return None
        return DecodeGraphs(self.model, self._cache.tensors, len(self._cache.held))

    def _compact(self) -> None:
        """Apply changes of membership; close the gaps if over a fifth of the row range is idle."""
        if not self._changed:
            return
        active = self._cache.active
        rows = np.flatnonzero(active)
        count = len(rows)
        if 4 * rows[-1] > 5 * count + 16:
            self._move(rows[rows >= count], np.flatnonzero(~active[:count]))
            rows = np.arange(count)
        self._rows = rows
        self._sampler.select(rows)
        self._changed = False

    def _move(self, rows: Int64Array, idle: Int64Array) -> None:
        """Move streams to idle rows, whose content moves to theirs."""
        self._cache.swap(rows, idle)
        self._sampler.move(rows, idle)
        for table in (self._logprobs, self._limits, self._due, self._stops):
            table[idle] = table[rows]
        for row, target in zip(rows.tolist(), idle.tolist(), strict=True):
            stream = self._streams[target] = self._streams.pop(row)
            stream.row = target

"""Decode steps as CUDA graphs.

A step of a small model consists of hundreds of kernels that are launched one after the other, and
launching them costs more than computing them.

A graph has fixed shapes and addresses. Rows and positions are therefore padded to the next power of
two, and each size is captured at its first use. The invariant: the logits of the requested rows
equal those of `CachedQwen3.decode`, up to rounding.

Source: torch's documentation of `torch.cuda.CUDAGraph` ("Whole-network capture"). Tests on CPUs
compute the padded steps instead of capturing them.
"""

import threading
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from rollart_flow.models.cached import CachedQwen3
from rollart_flow.models.cached_model import Int64Array
from rollart_flow.models.key_values import KeyValues

Compute: TypeAlias = Callable[[], None]
"""A computation that reads and writes tensors at fixed addresses."""
Capture: TypeAlias = Callable[[Compute], Compute]
"""A function that captures a computation and returns one that repeats it at the same addresses."""

LEAST_POSITIONS = 256
"""Number of positions that the shortest graph attends over; a smaller value would save little and
capture more graphs."""


class DecodeGraphs:
    """The graphs of one model over one cache; neither may move in memory."""

    def __init__(
        self, model: CachedQwen3, cache: KeyValues, rows: int, capture: Capture | None = None
    ) -> None:
        """Args: `rows` of the cache; `capture` makes a graph, by default one of CUDA."""
        self._model = model
        self._cache = cache
        self._rows = rows
        self._capture = capture or cuda_capture()
        device = model.device
        self._feed = torch.zeros((3, rows), dtype=torch.int64, device=device)
        self._logits = torch.zeros((rows, model.config.vocab_size), device=device)
        self._graphs: dict[tuple[int, int], Compute] = {}

    def __len__(self) -> int:
        """Return the number of captured graphs."""
        return len(self._graphs)

    def decode(
        self, tokens: Int64Array, held: Int64Array, places: Int64Array, wanted: Int64Array | None
    ) -> torch.Tensor:
        """Compute logits as `CachedQwen3.decode` does; they are valid until the next call."""
        count, scratch = len(tokens), self._cache.scratch
        rows = min(padded(count), self._rows)
        end = min(padded(int(held.max()) + 1, least=LEAST_POSITIONS), scratch)
        feed: Int64Array = np.zeros((3, rows), np.int64)
        feed[2] = scratch  # rows beyond the batch write to the scratch position
        feed[:, :count] = tokens, held, places
        self._feed[:, :rows].copy_(torch.from_numpy(feed))
        if (rows, end) not in self._graphs:
            self._graphs[rows, end] = self._capture(lambda: self._compute(rows, end))
        self._graphs[rows, end]()
        if wanted is None:
            return self._logits[:count]
        return self._logits.index_select(0, torch.from_numpy(wanted).to(self._logits.device))

    def _compute(self, rows: int, end: int) -> None:
        feed = self._feed[:, :rows]
        self._logits[:rows].copy_(self._model.decode_there(self._cache, feed, end))


def padded(count: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `count` and `least`."""
    return int(1 << (max(count, least) - 1).bit_length())


_OF_THREAD = threading.local()


def _aside() -> torch.cuda.Stream:
    """The stream beside which this thread captures.

    cuBLAS keeps a workspace of 32 MiB for each stream, until its process ends: another stream for
    each capture would take more memory whenever an engine gives its own back.
    """
    if not hasattr(_OF_THREAD, "stream"):
        _OF_THREAD.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream: torch.cuda.Stream = _OF_THREAD.stream
    return stream


def cuda_capture() -> Capture:
    """Return a function that captures CUDA graphs in a shared memory pool; only one is replayed at
    a time."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Compute) -> Compute:
        aside = _aside()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute()  # warm-up that initializes libraries; the capture writes the same values
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads go on: a trainer in the same process allocates memory meanwhile.
        with torch.cuda.graph(graph, pool, stream=aside, capture_error_mode="thread_local"):
            compute()
        return graph.replay

    return capture

"""Decode steps as CUDA graphs: a step of a small model is hundreds of kernels that are launched one
after the other, and costs more to launch than to compute.

A graph has fixed shapes and addresses, so that rows and positions are padded to the next power of
two, and each size is captured when it is first met. The invariant: the logits of the rows that were
asked for are those of `CachedQwen3.decode`, but for rounding.

Source: torch's documentation of `torch.cuda.CUDAGraph` ("Whole-network capture"). Tried: on CPUs,
where padded steps are computed instead of captured; see `models.device`.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from rollart_flow.models.cached import CachedQwen3, Int64Array
from rollart_flow.models.key_values import KeyValues

Compute: TypeAlias = Callable[[], None]
"""Reads and writes tensors that stay where they are."""
Capture: TypeAlias = Callable[[Compute], Compute]
"""Gives what does the same again, from the same addresses."""

LEAST_POSITIONS = 256
"""Positions that the shortest graph attends over; fewer would save little and capture more."""


class DecodeGraphs:
    """The graphs of one model over one cache; both must stay where they are."""

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
        """Graphs that were captured."""
        return len(self._graphs)

    def decode(
        self, tokens: Int64Array, held: Int64Array, places: Int64Array, wanted: Int64Array | None
    ) -> torch.Tensor:
        """See `CachedQwen3.decode`; the logits hold until the next call."""
        count, scratch = len(tokens), self._cache.scratch
        rows = min(padded(count), self._rows)
        end = min(padded(int(held.max()) + 1, least=LEAST_POSITIONS), scratch)
        feed: Int64Array = np.zeros((3, rows), np.int64)
        feed[2] = scratch  # rows beyond the batch write where nothing is kept
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
    """The next power of two that is not below `count` or `least`."""
    return int(1 << (max(count, least) - 1).bit_length())


def cuda_capture() -> Capture:
    """Makes CUDA graphs that share their memory, since one is replayed after the other."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Compute) -> Compute:
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            compute()  # so that libraries are set up; it writes what it writes again
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            compute()
        return graph.replay

    return capture

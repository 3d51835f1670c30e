"""The rows of the engine's key-value cache: who holds which tokens, and what can be reused.

A row is active (a request decodes in it) or idle (it keeps what a finished request left, for the
next turn of that trajectory or for another attempt at the same prompt). Idle rows are reused least
recently used first, so memory is bounded by construction. The invariant: positions below `held` of
a row are the keys and values of `chain[row, :held]` under the current weights.
"""

import numpy as np
import torch

from rollart_flow.errors import EngineError
from rollart_flow.models.cached import Int64Array
from rollart_flow.models.device import CPU
from rollart_flow.models.key_values import KeyValues
from rollart_flow.models.qwen3 import ModelConfig

MIN_SHARED = 8
"""Shorter prefixes are computed again: that costs less than copying them."""

SHARE = 0.5
"""Most of a GPU's free memory that the rows take: others compute there too."""


class RowCache:
    """Keys and values with the token chains that they belong to; plain bookkeeping in numpy."""

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        """Args: `rows` chains of up to `length` tokens each."""
        self.length = length
        self.tensors = KeyValues(config, rows, length, dtype, device)
        self.chain: Int64Array = np.zeros((rows, length + 1), np.int64)
        """Tokens of each row; the one at `held` is the next to be fed."""
        self.held: Int64Array = np.zeros(rows, np.int64)
        """Tokens whose keys and values are in the cache."""
        self.active = np.zeros(rows, np.bool_)
        self._used: Int64Array = np.full(rows, -1, np.int64)
        """When each row was released last; -1: it holds nothing."""
        self._clock = 0
        self._top = 0
        """Rows from here on were never taken."""

    def match(self, tokens: Int64Array) -> tuple[int, int]:
        """(row, length) of the longest common prefix that some row holds; length 0: none.

        At equal lengths a row comes first that can be taken over as a whole.
        """
        top = self._top
        if top == 0 or len(tokens) == 0:
            return 0, 0
        same = self.chain[:top, : len(tokens)] == tokens
        common = np.where(same.all(1), len(tokens), same.argmin(1))
        common = np.minimum(common, self.held[:top])
        best = int(common.max())
        whole = (common == best) & (self.held[:top] == best) & ~self.active[:top]
        row = int(whole.argmax()) if whole.any() else int(common.argmax())
        return row, best

    def oldest(self) -> int:
        """The idle row to overwrite next: an empty one, else the least recently used."""
        return int(np.where(self.active, np.iinfo(np.int64).max, self._used).argmin())

    def place(self, tokens: Int64Array) -> tuple[int, int, int | None]:
        """Give a chain an active row, with as much of it as some row holds already.

        All but the last token are to be held; the last is fed by the next decode step.

        Args:
            tokens: the chain, at least one token.

        Returns:
            (row, tokens of it that are valid, row to copy them from or None where none need be).
        """
        prefix = tokens[:-1]
        source, shared = self.match(prefix)
        if shared and not self.active[source] and self.held[source] == shared:
            row = source
        else:
            row = self.oldest()
            shared = shared if shared >= MIN_SHARED else 0
        self.active[row] = True
        self._top = max(self._top, row + 1)
        self.chain[row, : len(tokens)] = tokens
        self.held[row] = len(prefix)
        return row, shared, source if shared and source != row else None

    def release(self, row: int) -> None:
        """Keep an active row's content as idle."""
        self.active[row] = False
        self._clock += 1
        self._used[row] = self._clock

    def forget(self) -> None:
        """Forget every row: the weights changed."""
        self.active[:] = False
        self.held[:] = 0
        self._used[:] = -1
        self._top = 0

    def swap(self, active: int, idle: int) -> None:
        """Exchange an active row and an idle one, contents included."""
        self.tensors.swap_rows(active, idle, int(self.held[active]), int(self.held[idle]))
        for table in (self.chain, self.held, self.active, self._used):
            table[[active, idle]] = table[[idle, active]]


def rows_that_fit(wanted: int, least: int, row_bytes: int, free_bytes: int) -> int:
    """Rows to reserve on a GPU, where all of their memory is taken at once.

    Args:
        wanted: rows, if there is room.
        least: as many as decode together.
        row_bytes: of each.
        free_bytes: that nobody has taken.

    Raises:
        EngineError: not even the least fit.
    """
    fits = int(SHARE * free_bytes) // row_bytes
    if fits < least:
        raise EngineError(
            f"a KV cache of {least} rows takes {least * row_bytes / 2**30:.1f} GiB, more than half "
            f"of the GPU's free {free_bytes / 2**30:.1f}; lower policy.max_batch or max_context"
        )
    return min(wanted, fits)

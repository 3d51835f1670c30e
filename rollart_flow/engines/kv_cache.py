"""The rows of the engine's key-value cache: which tokens each row holds and which can be reused.

A row is active (a request decodes in it) or idle (it keeps the tokens of a finished request, for
the next turn of that trajectory or for another attempt at the same prompt). Idle rows are reused
least recently used first, so memory is bounded by construction. The invariant: positions below
`held` of a row are the keys and values of `chain[row, :held]` under the current weights.
"""

import numpy as np

from rollart_flow.errors import EngineError
from rollart_flow.models.cached_model import Int64Array
from rollart_flow.models.key_values import KeyValues

MIN_SHARED = 8
"""Minimum length of a shared prefix; computing a shorter one costs less than copying it."""

SHARE = 0.5
"""Maximum fraction of a GPU's free memory for the rows; other work on the GPU needs the rest."""


class RowCache:
    """Keys and values with the token chains they belong to; the bookkeeping uses numpy."""

    def __init__(self, tensors: KeyValues) -> None:
        """Keep the keys and values in `tensors`, which may be on any device."""
        self.tensors = tensors
        self.length = tensors.scratch
        rows, length = tensors.keys.shape[1], self.length
        self.chain: Int64Array = np.zeros((rows, length + 1), np.int64)
        """Tokens of each row; the token at index `held` is fed next."""
        self.held: Int64Array = np.zeros(rows, np.int64)
        """Number of tokens of each row whose keys and values are in the cache."""
        self.active = np.zeros(rows, np.bool_)
        self._used: Int64Array = np.full(rows, -1, np.int64)
        """Clock value at which each row was last released; -1 means that it holds nothing."""
        self._clock = 0
        self._top = 0
        """Index of the first row that was never used."""

    def match(self, tokens: Int64Array) -> tuple[int, int]:
        """Return (row, length) of the longest common prefix that any row holds; length 0 means
        none.

        At equal lengths, a row that can be taken over as a whole is preferred.
        """
        top = self._top
        if top == 0 or len(tokens) == 0:
            return 0, 0
        ended = np.append(tokens, -1)  # no row holds this token, so every row differs somewhere
        common = (self.chain[:top, : len(ended)] == ended).argmin(1)
        common = np.minimum(common, self.held[:top])
        best = int(common.max())
        whole = (common == best) & (self.held[:top] == best) & ~self.active[:top]
        row = int(whole.argmax()) if whole.any() else int(common.argmax())
        return row, best

    def oldest(self) -> int:
        """Return the idle row to overwrite next: an empty one, else the least recently used."""
        return int(np.where(self.active, np.iinfo(np.int64).max, self._used).argmin())

    def place(self, tokens: Int64Array) -> tuple[int, int, int | None]:
        """Assign an active row to a chain, reusing as many cached tokens as possible.

        All tokens but the last are to be cached; the next decode step feeds the last one.

        Args:
            tokens: the chain, at least one token.

        Returns:
            (row, number of valid tokens, row to copy them from, or None if no copy is needed).
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
        """Mark an active row as idle and keep its content."""
        self.active[row] = False
        self._clock += 1
        self._used[row] = self._clock

    def forget(self) -> None:
        """Clear every row after the weights changed."""
        self.active[:] = False
        self.held[:] = 0
        self._used[:] = -1
        self._top = 0

    def swap(self, active: Int64Array, idle: Int64Array) -> None:
        """Exchange active rows and as many idle ones, contents included."""
        rows, swapped = np.concatenate((active, idle)), np.concatenate((idle, active))
        self.tensors.swap_rows(active.tolist(), idle.tolist(), int(self.held[rows].max()))
        for table in (self.chain, self.held, self.active, self._used):
            table[rows] = table[swapped]


def rows_that_fit(wanted: int, least: int, row_bytes: int, free_bytes: int) -> int:
    """Return the number of rows to reserve on a GPU, where all of their memory is allocated at
    once.

    Args:
        wanted: preferred number of rows.
        least: number of rows that decode together.
        row_bytes: size of one row.
        free_bytes: unallocated GPU memory.

    Raises:
        EngineError: fewer than `least` rows fit.
    """
    fits = int(SHARE * free_bytes) // row_bytes
    if fits < least:
        raise EngineError(
            f"a KV cache of {least} rows takes {least * row_bytes / 2**30:.1f} GiB, more than half "
            f"of the GPU's free {free_bytes / 2**30:.1f}; lower policy.max_batch or max_context"
        )
    return min(wanted, fits)

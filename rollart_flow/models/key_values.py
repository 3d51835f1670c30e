"""The storage of a key-value cache: one tensor of keys and one of values for all rows and layers.

Shapes: L positions, K key-value heads, D head dim.
"""

import math
from functools import partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch

from rollart_flow.models.device import CPU
from rollart_flow.models.language_model import ModelShape


class KeyValues:
    """Keys and values of `rows` chains of up to `length` tokens, [layers, rows, K, L, D] each.

    Position `length` of each row is scratch space for values that are discarded. On a CPU, the
    system commits memory only for the positions written; on a GPU all of it is allocated at once.
    """

    def __init__(
        self,
        config: ModelShape,
        rows: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        heads, width = config.num_key_value_heads, config.head_dim
        shape = (config.num_hidden_layers, rows, heads, length + 1, width)
        self._zeros = partial(_zeros, shape, dtype, device)
        self.keys, self.values = self._zeros(), self._zeros()
        self.scratch = length

    @staticmethod
    def row_bytes(config: ModelShape, length: int, dtype: torch.dtype) -> int:
        """Return the size of one row in bytes."""
        each = config.num_key_value_heads * (length + 1) * config.head_dim
        return 2 * config.num_hidden_layers * each * dtype.itemsize

    def copy_row(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of a row to another row."""
        for side in (self.keys, self.values):
            side[:, target, :, :tokens] = side[:, source, :, :tokens]

    def swap_rows(self, some: list[int], others: list[int], tokens: int) -> None:
        """Exchange the first `tokens` positions of some rows with those of as many others."""
        for layer in (*self.keys, *self.values):
            held = layer[:, :, :tokens]
            copied = held[some]
            held[some] = held[others]
            held[others] = copied

    def clear(self) -> None:
        """Zero the whole cache, which also removes values that are not finite."""
        self.keys.zero_()
        self.values.zero_()

    def release(self) -> int:
        """Free the memory until `restore` is called, and return the number of bytes freed."""
        held = self.keys.nbytes + self.values.nbytes
        self.keys = self.values = self.keys.new_empty(0)
        if self.keys.is_cuda:
            torch.cuda.empty_cache()  # torch keeps what is freed for itself, others wait for it
        return held

    def restore(self) -> None:
        """Allocate zeroed memory after `release`; a cache that was not released is unchanged."""
        if not self.keys.numel():
            self.keys, self.values = self._zeros(), self._zeros()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device != CPU:
        return torch.zeros(shape, dtype=dtype, device=device)
    # torch writes its zeros; fresh pages of the system are zero and cost nothing until then
    pages = mmap(-1, math.prod(shape) * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(shape)

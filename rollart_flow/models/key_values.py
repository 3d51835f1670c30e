"""The memory of a key-value cache: one tensor of keys and one of values for all rows and layers.

Shapes: L positions, K key-value heads, D head dim.
"""

import torch

from rollart_flow.models.device import CPU
from rollart_flow.models.qwen3 import ModelConfig


class KeyValues:
    """Keys and values of `rows` chains of up to `length` tokens, [layers, rows, K, L, D] each.

    Position `length` of each row is scratch: whatever must not be kept is written there. On a CPU,
    memory is touched, and so taken from the system, only where tokens are written; on a GPU all of
    it is taken at once.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        length: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        heads, width = config.num_key_value_heads, config.head_dim
        self._shape = (config.num_hidden_layers, rows, heads, length + 1, width)
        self.keys = torch.zeros(self._shape, dtype=dtype, device=device)
        self.values = torch.zeros(self._shape, dtype=dtype, device=device)
        self.scratch = length

    @staticmethod
    def row_bytes(config: ModelConfig, length: int, dtype: torch.dtype) -> int:
        """What one row takes."""
        each = config.num_key_value_heads * (length + 1) * config.head_dim
        return 2 * config.num_hidden_layers * each * dtype.itemsize

    def copy_row(self, source: int, target: int, tokens: int) -> None:
        """Copy the first `tokens` positions of a row."""
        for side in (self.keys, self.values):
            side[:, target, :, :tokens] = side[:, source, :, :tokens]

    def swap_rows(self, one: int, other: int, one_tokens: int, other_tokens: int) -> None:
        """Exchange the first tokens of two rows, as many as each holds."""
        for side in (self.keys, self.values):
            kept = side[:, one, :, :one_tokens].clone()
            side[:, one, :, :other_tokens] = side[:, other, :, :other_tokens]
            side[:, other, :, :one_tokens] = kept

    def clear(self) -> None:
        """Forget everything, values that are not finite included."""
        self.keys.zero_()
        self.values.zero_()

    def release(self) -> int:
        """Hold no memory until `restore`; bytes that were reserved."""
        held = self.keys.nbytes + self.values.nbytes
        self.keys = self.values = self.keys.new_empty(0)
        if self.keys.is_cuda:
            torch.cuda.empty_cache()  # torch keeps what is freed for itself, others wait for it
        return held

    def restore(self) -> None:
        """Hold memory again, with nothing in it; without effect where it was not released."""
        if not self.keys.numel():
            self.keys = self.keys.new_zeros(self._shape)
            self.values = self.values.new_zeros(self._shape)

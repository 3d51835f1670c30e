"""The places of new tokens in a key-value cache, which the attention of a model writes to.

Shapes: R rows, T new tokens of each, L positions, K key-value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rollart_flow.models.key_values import KeyValues


@dataclass(frozen=True, slots=True)
class Slots:
    """New tokens of some rows of a cache."""

    cache: KeyValues
    rows: torch.Tensor | None
    """int64 [R], distinct; None for the first R rows."""
    places: torch.Tensor
    """int64 [R, T]: position in the cache that each token is written to."""
    positions: torch.Tensor
    """int64 [R, T]: position of each token in its chain."""
    end: int
    """Number of positions that attention looks at."""

    def store(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [R, K, T, D] of a layer; return those of all positions
        [R, K, L, D]."""
        count = len(self.places)
        held = []
        for side, new in ((self.cache.keys[layer], keys), (self.cache.values[layer], values)):
            rows = self._every(side) if self.rows is None else self.rows
            side[rows[:, None], :, self.places] = new.transpose(1, 2)
            whole = side[:count] if self.rows is None else side[self.rows]
            held.append(whole[:, :, : self.end])
        return held[0], held[1]

    def seen(self, window: int | None) -> torch.Tensor:
        """Return bool [R, 1, T, L]: which positions each token sees."""
        back = self.positions[..., None] - torch.arange(self.end, device=self.positions.device)
        seen = back >= 0
        return (seen if window is None else seen & (back < window))[:, None]

    def _every(self, side: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(self.places), device=side.device)

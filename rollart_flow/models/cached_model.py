"""The interface of a model in inference form: a batched key-value cache, prefill and decode.

`models.cached` has the implementation of Qwen3, `models.hf.cached` that of transformers' models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

    from rollart_flow.models.key_values import KeyValues

Int64Array = np.ndarray[Any, np.dtype[np.int64]]


class CachedModel(Protocol):
    """A model over a batched key-value cache, see `CachedQwen3`."""

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite all weights with those of `tensors`, which may be on any device."""
        ...

    def prefill(
        self, cache: KeyValues, tokens: Int64Array, rows: Int64Array, starts: Int64Array,
        counts: Int64Array,
    ) -> None:  # fmt: skip
        """Append the keys and values of new tokens to the rows of the cache."""
        ...

    def decode(
        self, cache: KeyValues, tokens: Int64Array, held: Int64Array, places: Int64Array,
        wanted: Int64Array | None,
    ) -> torch.Tensor:  # fmt: skip
        """Append one token to each row and compute the logits of the next tokens."""
        ...

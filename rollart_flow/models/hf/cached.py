"""A model of transformers for generation, over the batched key-value cache of the embedded engine.

transformers' own continuous batching returns no logprobs of sampled tokens and keeps its cache
across new weights, so that the engine's batching is that of `engines.batch`. The model writes keys
and values to the rows of the cache in its attention (`models.hf.attention`). Invariant: the logits
equal those of `TransformersModel` over the whole chain, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from rollart_flow.errors import SettingsError
from rollart_flow.models.cached_model import Int64Array
from rollart_flow.models.device import CPU
from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.hf.slots import Slots
from rollart_flow.models.key_values import KeyValues


class CachedTransformers:
    """A model in inference form, see `models.cached.CachedModel`."""

    def __init__(
        self,
        config: TransformersConfig,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        """Copy weights in Hugging Face names; they must have passed `folder.check_tensors`.

        Raises:
            SettingsError: the architecture keeps a state that is no keys and values of tokens.
        """
        model = config.build()
        if not model.packs:
            raise SettingsError(
                "the transformers engine serves architectures whose layers are all attention; "
                "take policy.engine=vllm"
            )
        self._model = model.to(device=device, dtype=dtype).requires_grad_(False)
        self.device = device
        self.load(tensors)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite all weights with those of `tensors`, which may be on any device."""
        self._model.load_stored(tensors)

    def prefill(
        self, cache: KeyValues, tokens: Int64Array, rows: Int64Array, starts: Int64Array,
        counts: Int64Array,
    ) -> None:  # fmt: skip
        """Append keys and values of new tokens to the rows, see `CachedQwen3.prefill`."""
        steps = np.arange(tokens.shape[1])
        positions = np.minimum(starts[:, None] + steps, cache.scratch - 1)
        places = np.where(steps < counts[:, None], positions, cache.scratch)
        self._hidden(cache, tokens, positions, places, rows)

    def decode(
        self, cache: KeyValues, tokens: Int64Array, held: Int64Array, places: Int64Array,
        wanted: Int64Array | None,
    ) -> torch.Tensor:  # fmt: skip
        """Append a token to each of the first rows and compute logits of the next tokens, see
        `CachedQwen3.decode`."""
        hidden = self._hidden(cache, tokens[:, None], held[:, None], places[:, None], None)
        hidden = hidden if wanted is None else hidden[self._there(wanted)]
        return self._model.logits(hidden[:, 0]).float()

    def _hidden(
        self,
        cache: KeyValues,
        tokens: Int64Array,
        positions: Int64Array,
        places: Int64Array,
        rows: Int64Array | None,
    ) -> torch.Tensor:
        """Return hidden states [R, T, E] of tokens [R, T], which enter the cache at `places`."""
        there = self._there(positions)
        slots = Slots(
            cache,
            rows=None if rows is None else self._there(rows),
            places=self._there(places),
            positions=there,
            end=int(positions.max()) + 1,
        )
        hidden: torch.Tensor = self._model(self._there(tokens), position_ids=there, slots=slots)
        return hidden

    def _there(self, array: Int64Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

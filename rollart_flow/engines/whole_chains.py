"""The batch of models that take images: every step computes the whole chains, without a cache.

Positions of a chain follow the sizes of its images, which the key-value cache of `engines.batch`
does not know. Each step therefore computes all tokens and images of each row again: right for small
models and for checks of others; vLLM serves larger ones. Invariant: the logits are those of the
trainer's model over the chain with the same images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch

from rollart_flow.engines.batch import DecodeBatch, Fill
from rollart_flow.engines.requests import EmbeddedStream
from rollart_flow.models.cached_model import CachedModel, Int64Array
from rollart_flow.models.hf.config import TransformersConfig
from rollart_flow.models.language_model import ModelShape
from rollart_flow.models.pictures import PictureProcessor


class WholeChains:
    """A model that computes whole chains, with the images of each."""

    def __init__(
        self,
        config: TransformersConfig,
        processor: PictureProcessor,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Copy weights in Hugging Face names; they must have passed `folder.check_tensors`."""
        self._processor = processor
        self._model = config.build().to(device=device, dtype=dtype).requires_grad_(False)
        self._device = device
        self.load(tensors)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite all weights with those of `tensors`, which may be on any device."""
        self._model.load_stored(tensors)

    def logits(self, chains: list[Int64Array], streams: list[EmbeddedStream]) -> torch.Tensor:
        """Return float32 logits [rows, vocab_size] of the token after each chain.

        Args:
            chains: tokens of each row.
            streams: the requests of the rows, with their images.
        """
        lengths = np.array([len(chain) for chain in chains])
        tokens = np.zeros((len(chains), int(lengths.max())), np.int64)
        kinds = np.zeros_like(tokens)
        for row, (chain, stream) in enumerate(zip(chains, streams, strict=True)):
            tokens[row, : len(chain)] = chain
            prompt = np.array(stream.request.prompt_ids)
            kinds[row, : len(prompt)] = prompt == self._processor.placeholder
        images = [image for stream in streams for image in stream.request.images]
        features: dict[str, torch.Tensor] = {}
        if images:
            features = self._processor.features(images)
            features["mm_token_type_ids"] = torch.from_numpy(kinds)
        last = np.arange(len(chains)) * tokens.shape[1] + lengths - 1
        hidden = self._model(
            torch.from_numpy(tokens).to(self._device),
            torch.from_numpy(last).to(self._device),
            **{name: tensor.to(self._device) for name, tensor in features.items()},
        )
        return self._model.logits(hidden).float()


class WholeChainBatch(DecodeBatch):
    """A batch whose steps compute the whole chains of all rows."""

    def _built(
        self,
        config: ModelShape,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> CachedModel:
        processor = config.pictures()
        assert isinstance(config, TransformersConfig)
        assert processor is not None
        self._chains = WholeChains(config, processor, tensors, dtype, device)
        return cast("CachedModel", self._chains)  # its users, `_fill` and `_decode`, are replaced

    def _fill(self, fills: list[Fill]) -> None:
        """Compute nothing ahead of a step."""

    def _decode(self) -> torch.Tensor:
        cache, streams = self._cache, [self._streams[int(row)] for row in self._rows]
        chains = [cache.chain[row, : cache.held[row] + 1] for row in self._rows]
        return self._chains.logits(chains, streams)

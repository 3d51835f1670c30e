"""Loading of published versions into one engine, whether they are whole weights or adapters.

The invariant: the engine computes what the trainer did at the version. An engine that serves
adapters keeps the whole weights of their base and swaps matrices alone; any other is given whole
weights, with the adapter merged in float32. The base is the model of the run's policy folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rollart_flow.engines.base import Engine
from rollart_flow.engines.weight_prefetcher import WeightPrefetcher
from rollart_flow.models.lora import is_adapter
from rollart_flow.weights.whole import AdapterBase, merged_version

if TYPE_CHECKING:
    import torch


class VersionLoader:
    """Loads versions into an engine, one at a time."""

    def __init__(self, engine: Engine, pulls: WeightPrefetcher, folder: str) -> None:
        """Args: `pulls` reads the versions, and `folder` is the run's policy folder, local."""
        self._engine = engine
        self._pulls = pulls
        self._folder = folder
        self._kept: AdapterBase | None = None
        """Weights of the base, for an engine that is given merged weights."""

    async def load(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Swap the engine to a version that was read.

        Raises:
            WeightsError: the tensors do not fit the model, or are an adapter that was trained over
                other weights than the run's policy; nothing was changed.
            EngineError: the engine has failed.
        """
        if not is_adapter(tensors):
            await self._engine.load(version, tensors)
            return
        adapter = await self._pulls.adapter(version)
        if self._engine.base is None:
            if self._kept is None:
                self._kept = await asyncio.to_thread(self._base)
            merged = await asyncio.to_thread(merged_version, tensors, adapter, self._kept)
            await self._engine.load(version, await asyncio.to_thread(dict, merged))
            return
        if self._engine.base != adapter.base:
            base = await asyncio.to_thread(self._base)
            await asyncio.to_thread(base.check, adapter)
            await self._engine.load(adapter.base, base.tensors)
        await self._engine.adapt(version, tensors, adapter)

    def _base(self) -> AdapterBase:
        from rollart_flow.models.folder import load_folder

        return AdapterBase(load_folder(self._folder)[1], self._folder)
